-- The common part of all scripts. ARGV[1] is the operation, ARGV[2] the owner (extend has several).
-- Every reply ends with this node's clock in microseconds, so that each client can check the clock:
-- only a reading in between shows that a clock has jumped and soon jumped back.
local op = ARGV[1]
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- A floor this many µs ahead of our own clock comes from a client with a wrong clock: ignore it.
local FLOOR_AHEAD = 60000000

-- Is the acquire so late that its client has given up? 0: the client could not give a time.
local function too_late()
  local not_after = tonumber(ARGV[5])
  return not_after > 0 and now > not_after
end

-- '%.0f', because tostring keeps only 14 digits.
local function keep_fence(key, fence, retention)
  redis.call('SET', key, string.format('%.0f', fence), 'PX', retention)
end

-- Stores and returns the counter's next value, which is at least floor. A client that knows too few
-- clocks sends -1; then our own clock is the floor. The floor is nearly always above the counter, so
-- it is written first: that takes one call, and its text needs no formatting.
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
