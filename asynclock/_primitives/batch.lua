-- Several releases and acquires of one loop tick in one call: releases first, then acquires. This file
-- does for each name what uncontended.lua does for one, apart from turns; lock.lua does the names that somebody waits for.
-- KEYS: of the releases: locks, queues; of the acquires: queues, locks, counters
-- batch releases ttl floor not_after retention ms owner...
--   {odd, {reply...}, now}: a reply is 1 (released) or a fence (acquired) where nobody waits, otherwise
--   what `release` or `acquire` alone would reply, or that name's error; odd is 1 if any is not a number
local odd, replies, rest = 0, {}, {}

-- An error at one name is the reply for that name alone. Before Redis 7 an error is no table.
local function safely(act, ...)
  local done, reply = pcall(act, ...)
  return done and reply or type(reply) == 'table' and reply or {err = tostring(reply)}
end

if op == 'batch' then
  local call, releases, ttl = redis.pcall, tonumber(ARGV[2]), ARGV[3]
  local acquires = #ARGV - 7 - releases
  local fence, text, keep = least(ARGV[4], ARGV[6])
  -- One call for all queues. A user without the right to call EXISTS gets an error here.
  local quiet = call('EXISTS', unpack(KEYS, releases + 1, 2 * releases + acquires)) == 0

  for i = 1, releases do
    local reply = call('GET', KEYS[i])
    if reply == ARGV[7 + i] then
      reply = call('DEL', KEYS[i])
      if reply == 1 and not quiet and call('PTTL', KEYS[releases + i]) ~= -2 then
        rest[#rest + 1] = i
      end
    elseif type(reply) ~= 'table' then
      reply = {0, '', now}
    end
    if reply ~= 1 then odd = 1 end
    replies[i] = reply
  end

  local late, queue = too_late(), 2 * releases
  local lock = queue + acquires
  local counter = lock + acquires
  for i = 1, acquires do
    local n = releases + i
    local reply = late and {-1, now}
    if not late and (quiet or call('PTTL', KEYS[queue + i]) == -2) then
      reply = call('SET', KEYS[lock + i], ARGV[7 + n], 'NX', 'PX', ttl)
    end
    if reply and reply.ok then
      local before = call('SET', KEYS[counter + i], text, 'PX', keep, 'GET')
      local value = before and tonumber(before) or not before and now - FLOOR_BEHIND
      if type(before) == 'table' then
        reply = before
      elseif value and value >= 0 and value < fence then
        reply = fence
      else
        reply = safely(fence_above, before, KEYS[counter + i], fence, ARGV[6])
      end
    elseif not reply then
      rest[#rest + 1] = n
    end
    if type(reply) == 'table' then odd = 1 end
    replies[n] = reply
  end
  if not rest[1] then return {odd, replies, now} end
end
