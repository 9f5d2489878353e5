-- The queue of a name on one node; batch.lua comes before. Protocol: docs/guarantees.md.
-- The queue is a sorted set: each waiter's ticket and its number. A ticket is a key of its own, too:
-- it expires unless its waiter asks again, and the waiter tracks it, so a change wakes that waiter
-- and nobody else. Its value is the number of slots that the waiter asks about (1 for a whole name), and
-- 'go' once the waiter was woken. In a batch (batch.lua) all names have as many slots.
local asked = op == 'batch' and (#KEYS + releases) / names or #KEYS
local WAITS, GO = tostring(math.max(1, asked - 2)), 'go'

-- Whether no name of the batch (of several names: none that is released) has a queue, nor a key of the
-- other side: then none need be looked at.
local nobody = false

-- How many keys of a name, after the first one, show that somebody waits or is in the way.
local aside = 1

-- One call for these keys of all names. A user without the right to call EXISTS gets an error here.
local function none_aside()
  return try('EXISTS', unpack(KEYS, names + 1, (1 + aside) * names)) == 0
end

local function derived(key, kind)
  return key .. ':#' .. kind
end

-- Returns an error that names the queue's key if that has the wrong type; Redis's own would not.
local function mistyped(queue)
  local known = redis.pcall('ZSCORE', queue, '')
  if type(known) == 'table' and string.find(known.err, 'WRONGTYPE') then
    local kind = redis.pcall('TYPE', queue).ok or 'another type'
    return {err = 'WRONGTYPE ' .. queue .. ' must be a sorted set (of waiters), but is ' .. kind}
  end
end

-- Returns the first ticket whose waiter lives, and its value; removes dead ones before it. Returns nil
-- and an error if the queue's key has the wrong type.
local function first(queue)
  while not nobody do
    local found = redis.pcall('ZRANGE', queue, 0, 0)
    if found.err then return nil, mistyped(queue) or redis.call('ZRANGE', queue, 0, 0) end
    local ticket = found[1]
    if not ticket then return nil end
    local value = redis.call('GET', derived(queue, ticket))
    if value then return ticket, value end
    redis.call('ZREM', queue, ticket)
  end
end

-- Wakes the first waiter, unless that was done before; returns its ticket, '' if nobody waits.
local function wake(queue)
  local ticket, value = first(queue)
  if ticket and value ~= GO then
    redis.call('SET', derived(queue, ticket), GO, 'KEEPTTL')
  end
  return ticket or ''
end

-- Puts a ticket into the queue or keeps it there for ms; returns its number. A number above 0 is
-- the one that the waiter has settled on, and replaces what we gave. Otherwise a new ticket gets
-- the floor, which all nodes were sent alike, or a higher number if others have that already.
local function join(queue, ticket, ms, number, floor)
  nobody = false
  local stored = tonumber(redis.call('ZSCORE', queue, ticket))
  if number <= 0 then
    number = stored
    if not number then
      local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
      number = math.max(floor, (tonumber(last) or 0) + 1)
    end
  end
  if number ~= stored then redis.call('ZADD', queue, string.format('%.0f', number), ticket) end
  redis.call('SET', derived(queue, ticket), WAITS, 'PX', ms)
  keep_for(queue, ms) -- another waiter's ticket may live for longer than this one
  return number
end

local function leave(queue, ticket)
  redis.call('ZREM', queue, ticket)
  redis.call('DEL', derived(queue, ticket))
end
