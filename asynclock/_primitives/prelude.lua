-- The functions that scripts have in common (clock.lua comes before).

-- Is the acquire so late that its client has given up? 0: the client could not give a time.
local function too_late()
  local not_after = tonumber(ARGV[5])
  return not_after > 0 and now > not_after
end

-- Milliseconds; a counter that a wrong clock has put further ahead than a day expires before its time.
local LONGEST_LEAD = 86400000

-- A counter stays until our clock shows its value plus the retention, so it stays for longer if it is
-- ahead of our clock (tests/model: N3). docs/tuning.md has the sum.
local function time_to_keep(fence, retention)
  if fence <= now then return retention end
  return retention + math.min(LONGEST_LEAD, math.ceil((fence - now) / 1000))
end

-- '%.0f', because tostring keeps only 14 digits.
local function keep_fence(key, fence, retention)
  redis.call('SET', key, string.format('%.0f', fence), 'PX', time_to_keep(fence, retention))
end

-- Lets a key live for `ms` milliseconds from now, or for longer if it does already: a request that is
-- late, after one for longer, shortens nothing.
local function keep_for(key, ms)
  redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), ms))
end

-- The least value that a counter gets: its number, its text, and the milliseconds to keep it. A client
-- that knows too few clocks sends -1; then our own clock is the floor.
local function least(floor, retention)
  local fence = tonumber(floor)
  if fence < 0 then
    fence = now
  elseif fence > now + FLOOR_AHEAD then
    fence = 0
  end
  if fence ~= tonumber(floor) then floor = string.format('%.0f', fence) end
  return fence, floor, time_to_keep(fence, retention)
end

-- Returns an error that names the key if this is no number of ours, as after a change by hand. From
-- 2^53 on two numbers in a row may be equal, so the next number must still be below that.
local function damaged(text, key)
  local number = tonumber(text)
  if number and number >= 0 and number < 9007199254740991 and number % 1 == 0 then return nil end
  return {err = 'WRONGTYPE ' .. key .. ' must keep a whole number from 0 to 2^53 - 2'}
end

-- Returns the counter's value, 0 if there is none, or an error that names the key.
local function counter_at(key)
  local text = redis.call('GET', key)
  return text and (damaged(text, key) or tonumber(text)) or 0
end

-- The fence above the counter's value `before`, which was overwritten with `fence`; or an error that
-- names the key. Then the damaged value is put back, because a missing one would count as an old one.
local function fence_above(before, key, fence, retention)
  local failure = before and damaged(before, key)
  if failure then
    redis.call('SET', key, before, 'PX', retention)
    return failure
  end
  before = tonumber(before or now - FLOOR_BEHIND)
  if before < fence then return fence end
  keep_fence(key, before + 1, retention)
  return before + 1
end

-- The reply to an acquire that was granted with this fence, unless that is an error.
local function granted(fence, next_one)
  if type(fence) == 'table' then return fence end
  return {1, fence, next_one, now}
end

-- An error of `act` is its reply.
local function safely(act, ...)
  local done, reply = pcall(act, ...)
  return done and reply or {err = tostring(reply)}
end

local floor, text, keep -- of `least`: in a batch the same for all names
local odd = 0 -- 1 once a reply of a batch is no number
local try, find = redis.pcall, string.find

-- Stores and returns the counter's next value, which is at least the floor; or an error. The floor is
-- nearly always above the counter, so it is written first: that takes one call, and its text needs no
-- formatting.
local function next_fence(counter)
  if not floor then floor, text, keep = least(ARGV[4], ARGV[6]) end
  local before = try('SET', counter, text, 'PX', keep, 'GET')
  -- Nearly always a lower number with as many digits: a comparison of texts takes less time.
  if before and #before == #text and before < text and find(before, '^%d+$') then return floor end
  local fence = type(before) == 'table' and before
    or safely(fence_above, before, counter, floor, ARGV[6])
  if type(fence) == 'table' then odd = 1 end
  return fence
end

-- What holding.lua needs, for a lock whose key contains the owner's id; others define their own.
local shared = false
local function has(lock, _, owner) return redis.call('GET', KEYS[lock]) == owner end
local function prolong(lock) keep_for(KEYS[lock], ARGV[2]) end
