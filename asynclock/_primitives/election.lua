-- A leader's published value, kept beside its lock (a mutex, lock.lua).
-- KEYS: lock, value, counter
-- publish owner record ms   {1 | 0, now}: 0 = the owner doesn't have the lock here
-- observe                   {leader | false, pttl, counter, record | false, now}
if op == 'publish' then
  if redis.call('GET', KEYS[1]) ~= ARGV[2] then return {0, now} end
  redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4])
  return {1, now}
else
  local counter = counter_at(KEYS[3])
  if type(counter) == 'table' then return counter end
  return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]), counter, redis.call('GET', KEYS[2]), now}
end
