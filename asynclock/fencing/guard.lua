-- A write that only happens if its fence is not lower than the highest fence seen for its lock.
-- KEYS: the highest fence seen of our part, that of each rival part..., keys to write...
-- ARGV: operation, fence, retention ms (0 = for ever), number of rivals, arguments...
--   claim                       only store the fence
--   set   value [ttl ms]
--   hset  field value [field value ...]
--   del
-- Reply: {1, what the write returned} | {0, highest fence seen} | {-1, oldest fence without a record}
-- The fence is stored before the write, so it also counts if the write fails (WRONGTYPE).
local op, fence, retention, rivals = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
-- Fences of this library are microseconds since 1970, or a little more; those below 2001 are not ours.
local FIRST_TIME = 1000000000000000
local texts, highest, known = {}, 0, false
for i = 1, rivals + 1 do
  texts[i] = redis.call('GET', KEYS[i]) or '0'
  local seen = tonumber(texts[i])
  if not seen then
    return redis.error_reply('NOFENCE the key of the highest fence holds something else')
  end
  if i > 1 then highest = math.max(highest, seen) end
  known = known or (seen > 0 and seen <= fence)
end
if fence < highest then return {0, highest} end
-- A record that has expired was at least a retention back, so a fence that is newer than half of that
-- is not stale. The other half is for a clock that was set back. An older fence needs a record.
local oldest = now - tonumber(retention) * 500
if retention ~= '0' and not known and fence > FIRST_TIME and fence < oldest then
  return {-1, math.floor(oldest)}
end
-- Keep the digits as text, because tostring() would keep only 14. Our fence may be lower than that
-- of another reader.
local kept = fence < tonumber(texts[1]) and texts[1] or ARGV[2]
if retention == '0' then
  redis.call('SET', KEYS[1], kept)
else
  -- Longer for a fence that is ahead of our clock, until the clock shows the fence plus the retention.
  local ahead = math.max(0, math.ceil((tonumber(kept) - now) / 1000))
  redis.call('SET', KEYS[1], kept, 'PX', retention + math.min(ahead, retention))
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
