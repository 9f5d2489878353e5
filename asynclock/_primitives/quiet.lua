-- The releases and acquires of a batch at names where nobody is in the way; the others go to `rest`.

-- Whether this name has no key that shows that somebody waits or is in the way.
local function alone(i)
  for k = 1, aside do
    if try('PTTL', KEYS[k * names + i]) ~= -2 then return false end
  end
  return true
end

if op == 'batch' then
  nobody = none_aside()

  -- One call reads all names to be released, and one deletes those that their owners still have.
  local held, own = releases > 0 and call('MGET', unpack(KEYS, 1, releases)), {}
  for i = 1, releases do
    if held[i] == ARGV[7 + i] and (nobody or alone(i)) then
      own[#own + 1], replies[i] = KEYS[i], 1
    else
      rest[#rest + 1] = i
    end
  end
  if own[1] then call('DEL', unpack(own)) end

  local late, ttl, find = too_late(), ARGV[3], string.find
  floor, text, keep = least(ARGV[4], ARGV[6])
  for i = releases + 1, names do
    local done = not late and (nobody or alone(i)) and try('SET', KEYS[i], ARGV[7 + i], 'NX', 'PX', ttl)
    if done and done.ok then
      local counter = KEYS[counters + i]
      local before = try('SET', counter, text, 'PX', keep, 'GET')
      -- Nearly always a lower number with as many digits: a comparison of texts takes less time.
      local lower = before and #before == #text and before < text and find(before, '^%d+$')
      replies[i] = lower and floor or fence_after(before, counter)
    else
      rest[#rest + 1] = i
    end
  end
  if not rest[1] then return {odd, replies, now} end
end
