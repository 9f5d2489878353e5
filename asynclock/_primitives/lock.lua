-- The mutex on one node. Protocol: docs/fencing.md; the differential test is tests/model/.
-- KEYS: lock, counter (pairs in extend); in acquire also the neighbours (other slots)
-- acquire owner ttl floor not_after retention   {1, fence, now} | {0, pttl, holder, now} | {-1, now}
--         with neighbours: {0, ms until the first slot is free, holder, '10...' 1 = taken, now}
-- raise   owner fence retention                 {1, previous, now} | {0, counter, now}
-- extend  ttl retention owner...                {'10...', now}: a digit per pair, 1 = extended
-- release owner                                 {1 | 0, now}
-- check   owner                                 {1 = the owner has the lock | 0, now}
-- inspect                                       {holder | false, pttl, counter, now}
if op == 'acquire' then
  local owner = ARGV[2]
  if too_late() then return {-1, now} end
  local holder = redis.call('GET', KEYS[1])
  if holder and holder ~= owner then
    local left = redis.call('PTTL', KEYS[1])
    if not KEYS[3] then return {0, left, holder, now} end
    local taken = {}
    for i = 3, #KEYS do
      local other = redis.call('PTTL', KEYS[i])
      taken[i - 2] = other == -2 and '0' or '1'
      if other >= 0 and other < left then left = other end
    end
    return {0, left, holder, table.concat(taken), now}
  end
  redis.call('SET', KEYS[1], owner, 'PX', ARGV[3])
  return {1, next_fence(KEYS[2], ARGV[4], ARGV[6]), now}
elseif op == 'raise' then
  local counter, fence = tonumber(redis.call('GET', KEYS[2])) or 0, tonumber(ARGV[3])
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
elseif op == 'release' then
  if redis.call('GET', KEYS[1]) ~= ARGV[2] then return {0, now} end
  redis.call('DEL', KEYS[1])
  return {1, now}
elseif op == 'check' then
  return {redis.call('GET', KEYS[1]) == ARGV[2] and 1 or 0, now}
else
  return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]),
    tonumber(redis.call('GET', KEYS[2])) or 0, now}
end
