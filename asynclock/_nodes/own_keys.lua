-- What a node keeps for the library itself. Each operation has one key.
--   record number value name ms      1 if the node keeps this change now, else 0: docs/decisions/0025
--   witness text ms                  the text that the node keeps
--   mark process ms roster           {1 if it named this process, since, the one before, roster, now}: 0018
--   roster before after ms           replaces a mark, unless it is not `before` any more: 0029
local op, key = ARGV[1], KEYS[1]

if op == 'record' then
  -- The key is a register (_primitives/shared/register.lua). This repeats the "accept" of its newest change, which any
  -- node may get late or twice. A field `name` says what the record calls this node.
  local state = redis.call('HMGET', key, 'promised', 'accepted')
  local promised, accepted = tonumber(state[1]) or 0, tonumber(state[2]) or 0
  local number = tonumber(ARGV[2])
  if number > promised then
    redis.call('HSET', key, 'promised', ARGV[2], 'by', '-', 'accepted', ARGV[2], 'value', ARGV[3])
  elseif number ~= accepted then
    return 0
  end
  redis.call('HSET', key, 'name', ARGV[4])
  redis.call('PEXPIRE', key, ARGV[5])
  return 1
end

local found = redis.call('GET', key)
if op == 'witness' then
  -- The witness is a random text, which stays the same until this database loses its keys.
  if found then redis.call('PEXPIRE', key, ARGV[3]) else redis.call('SET', key, ARGV[2], 'PX', ARGV[3]) end
  return found or ARGV[2]
elseif op == 'roster' then
  if found == ARGV[2] then redis.call('SET', key, ARGV[3], 'PX', ARGV[4]) end
  return 1
end

-- The mark is "process since before", and the roster if there is one: the replicas that must acknowledge each grant.
-- ARGV: the roster of a new term, "" if this client doesn't keep to a roster. Times are in µs.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local process, since, before, roster = string.match(found or '', '^(%S+) (%d+) (%S+) ?(%S*)$')
local same = process == ARGV[2]
if not same then
  since, before, roster = string.format('%.0f', now), process or '-', ARGV[4]
end
local known = since
if ARGV[4] == '' and roster ~= '' then
  -- This client grants without the roster's replicas. From now on nobody may believe them, and it waits until nobody
  -- can: it may count as one that has known the process since the roster was closed.
  if string.match(roster, '^%d') then
    same, roster = false, string.format('-%.0f', now) .. string.match(roster, ';.*$')
  end
  known = string.match(roster, '^-(%d+)')
end
local mark = ARGV[2] .. ' ' .. since .. ' ' .. before
if roster ~= '' then mark = mark .. ' ' .. roster end
redis.call('SET', key, mark, 'PX', ARGV[3])
return {same and 1 or 0, tonumber(known), before, roster, now}
