-- The commands that the mutex's script of version 1.0.0 executes for one name, in its acquire and its release
-- with the keys and arguments that FirstVersion sends. What batches, semaphores, turns, rests, detached leases
-- and inspections need is left out.
local op = ARGV[1]
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local FLOOR_AHEAD = 60000000
local FLOOR_BEHIND = 60000000

-- KEYS: lock, counter, queue. Nobody waits:
local won, before
if op == 'acquire' then
  local floor, not_after, keep = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
  if not_after > 0 and now > not_after then return {-1, now} end
  won = redis.call('PTTL', KEYS[3]) == -2 and redis.call('SET', KEYS[1], ARGV[2], 'NX', 'PX', ARGV[3])
  if won and floor >= 0 and floor <= now + FLOOR_AHEAD then
    if floor > now then keep = keep + math.ceil((floor - now) / 1000) end
    before = redis.call('SET', KEYS[2], ARGV[4], 'PX', keep, 'GET')
    local counter = before and tonumber(before) or not before and now - FLOOR_BEHIND
    if counter and counter >= 0 and counter < floor then return {1, floor, '', now} end
  end
elseif op == 'release' then
  if redis.call('GET', KEYS[1]) ~= ARGV[2] then return {0, '', now} end
  redis.call('DEL', KEYS[1])
  if redis.call('PTTL', KEYS[3]) == -2 then return {1, '', now} end
end

local function keep_fence(key, fence, retention)
  if fence > now then retention = retention + math.min(86400000, math.ceil((fence - now) / 1000)) end
  redis.call('SET', key, string.format('%.0f', fence), 'PX', retention)
end

local function fence_above(key, fence, retention)
  before = tonumber(before or now - FLOOR_BEHIND)
  if before < fence then return fence end
  keep_fence(key, before + 1, retention)
  return before + 1
end

local function derived(key, kind)
  return key .. ':#' .. kind
end

local function first(queue)
  while true do
    local ticket = redis.call('ZRANGE', queue, 0, 0)[1]
    if not ticket then return nil end
    local value = redis.call('GET', derived(queue, ticket))
    if value then return ticket, value end
    redis.call('ZREM', queue, ticket)
  end
end

local function wake(queue)
  local ticket, value = first(queue)
  if ticket and value ~= 'go' then
    redis.call('SET', derived(queue, ticket), 'go', 'KEEPTTL')
  end
  return ticket or ''
end

if won then
  return {1, fence_above(KEYS[2], tonumber(ARGV[4]), ARGV[6]), '', now}
elseif op == 'release' then
  return {1, wake(KEYS[3]), now}
end
local queue, holder = KEYS[3], nil
local head = first(queue)
if head or not redis.call('SET', KEYS[1], ARGV[2], 'NX', 'PX', ARGV[3]) then
  holder = redis.call('GET', KEYS[1])
end
if not holder and not head then
  before = redis.call('SET', KEYS[2], ARGV[4], 'PX', ARGV[6], 'GET')
  return {1, fence_above(KEYS[2], tonumber(ARGV[4]), ARGV[6]), '', now}
end
local left, free = redis.call('PTTL', KEYS[1]), 0
if not holder then
  wake(queue)
  holder, left, free = head, redis.call('PTTL', derived(queue, head)), 1
end
return {0, left, holder, 0, 0, free, now}
