-- The witness is a random text. It stays the same until this database loses its keys.
-- KEYS: witness
-- ARGV: the text of a new witness, retention (ms)
-- Returns the text that the node keeps
local found = redis.call('GET', KEYS[1])
if found then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return found
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1]
