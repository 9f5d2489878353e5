-- The owners of several locks on one node, and what they publish: like lock.lua's inspect, for many at once.
-- KEYS: lock, counter, message, ...   {{holder | false, pttl, counter, message | false}, ...}
local function text(key)
  -- A key of another program under the prefix may have any type: it is not a lock.
  local found = redis.pcall('GET', key)
  return type(found) == 'string' and found
end

local found = {}
for i = 1, #KEYS, 3 do
  local counter = text(KEYS[i + 1]) or ''
  counter = #counter <= 16 and tonumber(string.match(counter, '^%d+$')) or 0
  found[#found + 1] = {text(KEYS[i]), redis.call('PTTL', KEYS[i]), counter, text(KEYS[i + 2])}
end
return found
