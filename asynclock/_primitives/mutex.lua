-- What all mutexes share: a key that contains the owner's id. holding.lua follows.
-- KEYS: lock, counter
-- inspect   {holder | false, pttl, counter, now}
if op == 'inspect' then
  local counter = counter_at(KEYS[2])
  if type(counter) == 'table' then return counter end
  return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]), counter, now}
end
local shared = false
local function has(lock, _, owner) return redis.call('GET', KEYS[lock]) == owner end
local function prolong(lock) keep_for(KEYS[lock], ARGV[2]) end
