-- The releases and acquires of a batch at names for which nobody waits: this file does for each name
-- what uncontended.lua does for one, apart from turns. It leaves the rest to lock.lua.
local replies, rest = {}, {}

if op == 'batch' then
  local call, releases, ttl, odd = redis.pcall, tonumber(ARGV[2]), ARGV[3], 0
  local names = #ARGV - 7
  local counters = #KEYS - names
  local fence, text, keep = least(ARGV[4], ARGV[6])
  -- One call for all queues. A user without the right to call EXISTS gets an error here.
  local quiet = call('EXISTS', unpack(KEYS, names + 1, 2 * names)) == 0

  -- One call reads all names to be released, and one deletes those that their owners still have.
  local held, own = releases > 0 and redis.call('MGET', unpack(KEYS, 1, releases)), {}
  for i = 1, releases do
    local reply = held[i] or call('GET', KEYS[i]) -- MGET hides a wrong type
    if reply == ARGV[7 + i] then
      own[#own + 1], reply = KEYS[i], 1
      if not quiet and call('PTTL', KEYS[names + i]) ~= -2 then rest[#rest + 1] = i end
    elseif type(reply) ~= 'table' then
      reply = {0, '', now}
    end
    if reply ~= 1 then odd = 1 end
    replies[i] = reply
  end
  if own[1] then redis.call('DEL', unpack(own)) end

  local late = too_late()
  for i = releases + 1, names do
    local reply = late and {-1, now}
    if not late and (quiet or call('PTTL', KEYS[names + i]) == -2) then
      reply = call('SET', KEYS[i], ARGV[7 + i], 'NX', 'PX', ttl)
    end
    if reply and reply.ok then
      local counter = KEYS[counters + i]
      local before = call('SET', counter, text, 'PX', keep, 'GET')
      local value = tonumber(before or now - FLOOR_BEHIND)
      if type(before) == 'table' then
        reply = before
      elseif value and value == math.abs(value) and value < fence then
        reply = fence
      else
        reply = safely(fence_above, before, counter, fence, ARGV[6])
      end
    elseif not reply then
      rest[#rest + 1] = i
    end
    if type(reply) == 'table' then odd = 1 end
    replies[i] = reply
  end
  if not rest[1] then return {odd, replies, now} end
end
