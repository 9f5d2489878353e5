-- The operations that every mutex has in common; the file before this one has the others.
-- KEYS: lock, counter (pairs in extend)
-- raise   owner fence retention                 {1, previous, now} | {0, counter, now}
-- extend  ttl retention owner...                {'10...', now}: a digit per pair, 1 = extended
-- check   owner                                 {1 = the owner has the lock | 0, now}
-- inspect                                       {holder | false, pttl, counter, now}
if op == 'raise' then
  local counter, fence = counter_at(KEYS[2]), tonumber(ARGV[3])
  if type(counter) == 'table' then return counter end
  if redis.call('GET', KEYS[1]) ~= ARGV[2] or counter > fence then return {0, counter, now} end
  keep_fence(KEYS[2], fence, ARGV[4])
  return {1, counter, now}
elseif op == 'extend' then
  local marks = {}
  for i = 1, #ARGV - 3 do
    local lock = KEYS[2 * i - 1]
    if redis.call('GET', lock) == ARGV[i + 3] then
      redis.call('PEXPIRE', lock, ARGV[2])
      keep_counter(KEYS[2 * i], ARGV[3])
      marks[i] = '1'
    else
      marks[i] = '0'
    end
  end
  return {table.concat(marks), now}
elseif op == 'check' then
  return {redis.call('GET', KEYS[1]) == ARGV[2] and 1 or 0, now}
end
local counter = counter_at(KEYS[2])
if type(counter) == 'table' then return counter end
return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]), counter, now}
