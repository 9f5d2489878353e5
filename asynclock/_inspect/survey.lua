-- The owners of several locks on one node: like lock.lua's inspect, for many locks at once.
-- KEYS: lock, counter, lock, counter, ...   {{holder | false, pttl, counter}, ...}
local found = {}
for i = 1, #KEYS, 2 do
  -- A key of another program under the prefix may have any type: it is not a lock.
  local holder = redis.pcall('GET', KEYS[i])
  if type(holder) == 'table' then holder = false end
  local counter = redis.pcall('GET', KEYS[i + 1])
  counter = type(counter) == 'string' and #counter <= 16 and tonumber(string.match(counter, '^%d+$')) or 0
  found[#found + 1] = {holder, redis.call('PTTL', KEYS[i]), counter}
end
return found
