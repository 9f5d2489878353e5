-- What every script shares. ARGV[1] is the operation, ARGV[2] the owner (batched in extend).
-- Every reply ends with this node's clock in microseconds, so that each client can guard it: a
-- clock that jumps and soon jumps back shows only to whoever looks in between.
local op = ARGV[1]
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- A floor this far ahead of our own clock comes from a client whose clock is wrong: ignored.
local FLOOR_AHEAD = 60000000

-- An acquire that comes so late was given up by its client (0: it could not say when that is).
local function too_late()
  local not_after = tonumber(ARGV[5])
  return not_after > 0 and now > not_after
end

-- '%.0f' because tostring keeps 14 digits only.
local function keep_fence(key, fence, retention)
  redis.call('SET', key, string.format('%.0f', fence), 'PX', retention)
end

-- The counter's next value, at least floor, is stored and returned. A client that knows too few
-- clocks yet says -1, and ours serves. The floor is nearly always ahead: written first, it costs
-- one call, and its text needs no formatting.
local function next_fence(key, floor, retention)
  local fence = tonumber(floor)
  if fence < 0 then
    fence = now
  elseif fence > now + FLOOR_AHEAD then
    fence = 0
  end
  if fence ~= tonumber(floor) then floor = string.format('%.0f', fence) end
  local before = tonumber(redis.call('SET', key, floor, 'PX', retention, 'GET')) or 0
  if before < fence then return fence end
  keep_fence(key, before + 1, retention)
  return before + 1
end
