-- The releases and acquires of a batch at names for which nobody waits: this file does for each name
-- what uncontended.lua does for one, apart from turns. It leaves the rest to lock.lua.
local replies, rest = {}, {}

if op == 'batch' then
  local try, find = redis.pcall, string.find
  local releases, ttl, odd = tonumber(ARGV[2]), ARGV[3], 0
  local names = #ARGV - 7
  local counters = #KEYS - names
  local fence, text, keep = least(ARGV[4], ARGV[6])
  -- One call for all queues. A user without the right to call EXISTS gets an error here.
  local quiet = try('EXISTS', unpack(KEYS, names + 1, 2 * names)) == 0

  -- One call reads all names to be released, and one deletes those that their owners still have.
  local held, own, owned = releases > 0 and call('MGET', unpack(KEYS, 1, releases)), {}, 0
  for i = 1, releases do
    local reply = held[i] or try('GET', KEYS[i]) -- MGET hides a wrong type
    if reply == ARGV[7 + i] then
      owned = owned + 1
      own[owned], reply = KEYS[i], 1
      if not quiet and try('PTTL', KEYS[names + i]) ~= -2 then rest[#rest + 1] = i end
    else
      if type(reply) ~= 'table' then reply = {0, '', now} end
      odd = 1
    end
    replies[i] = reply
  end
  if owned > 0 then call('DEL', unpack(own)) end

  local late = too_late()
  for i = releases + 1, names do
    local reply = late and {-1, now}
    if not late and (quiet or try('PTTL', KEYS[names + i]) == -2) then
      reply = try('SET', KEYS[i], ARGV[7 + i], 'NX', 'PX', ttl)
    end
    if not reply then
      rest[#rest + 1] = i
    elseif not reply.ok then
      odd = 1
    else
      local counter = KEYS[counters + i]
      local before = try('SET', counter, text, 'PX', keep, 'GET')
      -- Nearly always a lower number with as many digits: a comparison of texts takes less time.
      local lower = before and #before == #text and before < text and find(before, '^%d+$')
      if lower or not before and now - FLOOR_BEHIND < fence then
        reply = fence
      else
        reply = type(before) == 'table' and before or safely(fence_above, before, counter, fence, ARGV[6])
        if type(reply) == 'table' then odd = 1 end
      end
    end
    replies[i] = reply
  end
  if not rest[1] then return {odd, replies, now} end
end
