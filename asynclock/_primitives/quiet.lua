-- The releases and acquires of a batch at names where nobody is in the way; the others go to `rest`.

-- Whether this name has no key that shows that somebody waits or is in the way.
local function quiet(i)
  for k = 1, aside do
    if try('PTTL', KEYS[k * names + i]) ~= -2 then return false end
  end
  return true
end

if op == 'batch' then
  nobody = none_aside()

  -- One call reads all names to be released, and one deletes those that their owners still have.
  local held, own, owned = releases > 0 and call('MGET', unpack(KEYS, 1, releases)), {}, 0
  for i = 1, releases do
    if held[i] == ARGV[7 + i] and (nobody or quiet(i)) then
      owned = owned + 1
      own[owned], replies[i] = KEYS[i], 1
    else
      rest[#rest + 1] = i
    end
  end
  if owned > 0 then call('DEL', unpack(own)) end

  local late, ttl = too_late(), ARGV[3]
  for i = releases + 1, names do
    local done = not late and (nobody or quiet(i)) and try('SET', KEYS[i], ARGV[7 + i], 'NX', 'PX', ttl)
    if done and done.ok then
      replies[i] = next_fence(KEYS[counters + i])
    else
      rest[#rest + 1] = i
    end
  end
end
