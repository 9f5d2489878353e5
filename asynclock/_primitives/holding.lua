-- The operations of an owner on its lease, which are the same for all kinds of locks. These are
-- defined before, in prelude.lua or anew for a kind of lock:
--   has(first, last, owner)      whether the owner holds the locks KEYS[first], KEYS[first + 2] …
--   prolong(first, last, owner)  lets the owner keep these locks for ARGV[2] ms
--   shared                       whether other owners may hold the lock too, and raise its counter
-- KEYS: lock, counter (one pair for each name of a lease); in extend the keys of each owner in turn
-- raise   owner fence retention                 {1, previous, now} | {0, counter, now}
-- extend  ttl retention owner...                {'10...', now}: a digit per owner, 1 = extended
-- publish owner text ms                         {1 | 0 = the owner doesn't have all, now}; '' deletes
--         KEYS: for each lock of the owner the lock, and the key that gets the text for ms
-- check   owner                                 {1 = the owner has all | 0, now}
-- inspect                                       {holder | false, pttl, counter, now}; not of readers
if op == 'raise' then
  local counter, fence = 0, tonumber(ARGV[3])
  for i = 2, #KEYS, 2 do
    local value = counter_at(KEYS[i])
    if type(value) == 'table' then return value end
    counter = math.max(counter, value)
  end
  if not has(1, #KEYS, ARGV[2]) or counter > fence and not shared then return {0, counter, now} end
  for i = 2, #KEYS, 2 do keep_fence(KEYS[i], math.max(counter, fence), ARGV[4]) end
  return {1, counter, now}
elseif op == 'extend' then
  local digits, size = {}, #KEYS / (#ARGV - 3)
  for i = 1, #ARGV - 3 do
    local first, last, owner = (i - 1) * size + 1, i * size, ARGV[i + 3]
    digits[i] = has(first, last, owner) and '1' or '0'
    if digits[i] == '1' then
      prolong(first, last, owner)
      for k = first + 1, last, 2 do keep_for(KEYS[k], ARGV[3]) end
    end
  end
  return {table.concat(digits), now}
elseif op == 'publish' then
  if not has(1, #KEYS, ARGV[2]) then return {0, now} end
  for i = 2, #KEYS, 2 do
    if ARGV[3] == '' then redis.call('DEL', KEYS[i]) else redis.call('SET', KEYS[i], ARGV[3], 'PX', ARGV[4]) end
  end
  return {1, now}
elseif op == 'check' then
  return {has(1, #KEYS, ARGV[2]) and 1 or 0, now}
elseif op == 'inspect' then
  local counter = counter_at(KEYS[2])
  if type(counter) == 'table' then return counter end
  return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]), counter, now}
end
