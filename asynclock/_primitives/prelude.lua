-- What every script shares. ARGV[1] is the operation, ARGV[2] the owner (batched in extend).
-- Every reply ends with this node's clock in microseconds, so that each client can guard it.
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

-- The counter's next value, at least floor; a client that knows too few clocks yet says -1, and
-- ours serves. '%.0f' because tostring keeps 14 digits only. The caller stores it once the grant
-- is certain.
local function next_fence(key, floor)
  if floor < 0 then floor = now end
  local fence = (tonumber(redis.call('GET', key)) or 0) + 1
  if floor > fence and floor <= now + FLOOR_AHEAD then fence = floor end
  return fence
end

local function keep_fence(key, fence, retention)
  redis.call('SET', key, string.format('%.0f', fence), 'PX', retention)
end
