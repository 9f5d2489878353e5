-- The mark names the process that clients last met at this address. Reasons: docs/decisions/0018.
-- With a roster it also has the replicas that must acknowledge each grant: docs/decisions/0029.
-- KEYS: mark ("process since before", and the roster if there is one)
-- ARGV: process, retention (ms), roster of a new term ("" if this client doesn't keep to a roster)
-- Returns {1 if the mark named this process already, since (µs), the process before it, roster, now (µs)}
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local found = redis.call('GET', KEYS[1]) or ''
local process, since, before, roster = string.match(found, '^(%S+) (%d+) (%S+) ?(%S*)$')
local same = process == ARGV[1]
if not same then
  since, before, roster = string.format('%.0f', now), process or '-', ARGV[3]
end
local known = since
if ARGV[3] == '' and roster ~= '' then
  -- This client grants without the roster's replicas. From now on nobody may believe them, and it waits until nobody
  -- can: it may count as one that has known the process since the roster was closed.
  if string.match(roster, '^%d') then
    same, roster = false, string.format('-%.0f', now) .. string.match(roster, ';.*$')
  end
  known = string.match(roster, '^-(%d+)')
end
local mark = ARGV[1] .. ' ' .. since .. ' ' .. before
if roster ~= '' then mark = mark .. ' ' .. roster end
redis.call('SET', KEYS[1], mark, 'PX', ARGV[2])
return {same and 1 or 0, tonumber(known), before, roster, now}
