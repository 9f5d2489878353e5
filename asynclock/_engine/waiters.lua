-- Lists the waiters in a queue on one node, the first one first (_primitives/queue.lua); changes nothing.
-- KEYS: queue [writer]   ARGV: inspect, maximum
-- {{ticket, place, value of the ticket's key, number}, ...}
-- With the key of a writer it is the queue of a read-write lock (_primitives/phases.lua). Readers
-- that wait go after the writer that has the name; if none has it, after the first that waits.
local LATER = 4e15
local tickets = redis.call('ZRANGE', KEYS[1], 0, ARGV[2] - 1, 'WITHSCORES')
local turn = KEYS[2] and redis.call('GET', KEYS[2]) and 0
local found = {}
for i = 1, #tickets, 2 do
  local ticket, number, place = tickets[i], tickets[i + 1], tickets[i + 1]
  -- A ticket without its key belongs to a waiter that died.
  local value = redis.call('GET', KEYS[1] .. ':#' .. ticket)
  if value then
    if KEYS[2] and tonumber(number) > 0 then
      turn = turn or tonumber(number)
      if tonumber(number) >= LATER then place = string.format('%.1f', turn + 0.5) end
    end
    found[#found + 1] = {ticket, place, value, number}
  end
end
return found
