-- A write that only happens if its fence is not lower than the highest fence seen for its lock.
-- KEYS: the highest fence seen of our part, that of each rival part..., keys to write...
-- ARGV: operation, fence, retention ms (0 = for ever), number of rivals, arguments...
--   claim                       only store the fence
--   set   value [ttl ms]
--   hset  field value [field value ...]
--   del
-- Reply: {1, what the write returned} | {0, highest fence seen}
-- The fence is stored before the write, so it also counts if the write fails (WRONGTYPE).
local op, fence, retention, rivals = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local texts, highest = {}, 0
for i = 1, rivals + 1 do
  texts[i] = redis.call('GET', KEYS[i]) or '0'
  local seen = tonumber(texts[i])
  if not seen then
    return redis.error_reply('NOFENCE the key of the highest fence holds something else')
  end
  if i > 1 then highest = math.max(highest, seen) end
end
if fence < highest then return {0, highest} end
-- Keep the digits as text, because tostring() would keep only 14. Our fence may be lower than that
-- of another reader.
local kept = fence < tonumber(texts[1]) and texts[1] or ARGV[2]
if retention == '0' then
  redis.call('SET', KEYS[1], kept)
else
  redis.call('SET', KEYS[1], kept, 'PX', retention)
end

local first, count = rivals + 2, 0
if op == 'set' then
  if ARGV[6] then
    redis.call('SET', KEYS[first], ARGV[5], 'PX', ARGV[6])
  else
    redis.call('SET', KEYS[first], ARGV[5])
  end
elseif op == 'hset' then
  -- One pair at a time: unpack() of a large hash would overflow Lua's stack.
  for i = 5, #ARGV, 2 do
    count = count + redis.call('HSET', KEYS[first], ARGV[i], ARGV[i + 1])
  end
elseif op == 'del' then
  for i = first, #KEYS do
    count = count + redis.call('DEL', KEYS[i])
  end
end
return {1, count}
