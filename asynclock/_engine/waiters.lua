-- Who waits in a queue on one node, first one first (_primitives/queue.lua); changes nothing.
-- KEYS: queue   ARGV: inspect, maximum   {{ticket, number, value of the ticket's key}, ...}
local found = {}
local tickets = redis.call('ZRANGE', KEYS[1], 0, ARGV[2] - 1, 'WITHSCORES')
for i = 1, #tickets, 2 do
  -- A ticket without its key belongs to a waiter that died.
  local value = redis.call('GET', KEYS[1] .. ':#' .. tickets[i])
  if value then found[#found + 1] = {tickets[i], tickets[i + 1], value} end
end
return found
