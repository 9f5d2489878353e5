-- The queue of a read-write lock on one node; queue.lua comes before.
-- One sorted set keeps the tickets of both sides. Those that go first have the lowest numbers:
--   READY   readers that waited when a writer released: all of them go before the next writer
--   AHEAD   a reader that becomes a writer (an upgrade)
--   FIRST…  writers, in order
--   LATER…  readers that go after the next writer
local READY, AHEAD, FIRST, LATER = -1, 1, 2, 4e15
WAITS = '1' -- all wait for the whole name
aside = 2 -- the queue, and the key of the other side

if op == 'leave' or op == 'pass' then -- a release first gives the name back
  local failure = mistyped(KEYS[3])
  if failure then return failure end
end

-- Returns the first ticket of a writer that lives.
local function waiting_writer(queue)
  for _, ticket in ipairs(redis.call('ZRANGEBYSCORE', queue, AHEAD, '(' .. LATER)) do
    if redis.call('GET', derived(queue, ticket)) then return ticket end
  end
end

-- Returns whether more than `most` (0 or 1) readers hold the name.
local function read_by_more(readers, most)
  local last = redis.call('ZREVRANGE', readers, most, most, 'WITHSCORES')
  return last[2] and tonumber(last[2]) * 1000 > now
end

-- Wakes all who may go now, unless that was done before; returns their tickets.
local function wake_next(lock, queue, readers)
  local head = first(queue)
  if not head or redis.call('GET', lock) then return {} end
  local writer = waiting_writer(queue)
  if head == writer then
    local upgrade = tonumber(redis.call('ZSCORE', queue, head)) == AHEAD
    if read_by_more(readers, upgrade and 1 or 0) then return {} end
    wake(queue)
    return {head}
  end
  local woken = {}
  for _, ticket in ipairs(redis.call('ZRANGEBYSCORE', queue, '-inf', writer and READY or '+inf')) do
    local key = derived(queue, ticket)
    local value = redis.call('GET', key)
    if not value then
      redis.call('ZREM', queue, ticket)
    else
      if value ~= GO then redis.call('SET', key, GO, 'KEEPTTL') end
      woken[#woken + 1] = ticket
    end
  end
  return woken
end

-- A writer has had its turn: the readers that wait now go before the next one.
local function end_turn(queue)
  for _, ticket in ipairs(redis.call('ZRANGEBYSCORE', queue, LATER, '+inf')) do
    redis.call('ZADD', queue, READY, ticket)
  end
end
