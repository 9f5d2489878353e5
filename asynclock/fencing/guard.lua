-- A write that only happens if its fence is not lower than the highest seen for its lock.
-- KEYS: highest fence seen, keys to write...
-- ARGV: operation, fence, retention ms (0 = for ever), arguments...
--   claim                       only remember the fence
--   set   value [ttl ms]
--   hset  field value [field value ...]
--   del
-- Reply: {1, what the write returned} | {0, highest fence seen}
-- The fence is remembered before the write: a write that fails (WRONGTYPE) has still shown it.
local op, fence, retention = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local seen = redis.call('GET', KEYS[1]) or '0'
local highest = tonumber(seen)
if not highest then
  return redis.error_reply('NOFENCE the key of the highest fence holds something else')
end
if fence < highest then return {0, highest} end
-- The digits as they came: tostring() would keep 14 of them.
if retention == '0' then
  redis.call('SET', KEYS[1], ARGV[2])
else
  redis.call('SET', KEYS[1], ARGV[2], 'PX', retention)
end

local count = 0
if op == 'set' then
  if ARGV[5] then
    redis.call('SET', KEYS[2], ARGV[4], 'PX', ARGV[5])
  else
    redis.call('SET', KEYS[2], ARGV[4])
  end
elseif op == 'hset' then
  -- Pair by pair: unpack() of a large hash would overflow Lua's stack.
  for i = 4, #ARGV, 2 do
    count = count + redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
  end
elseif op == 'del' then
  for i = 2, #KEYS do
    count = count + redis.call('DEL', KEYS[i])
  end
end
return {1, count}
