-- Tells this node what other nodes keep of the fleet's record (docs/decisions/0025). The key is a
-- register (_primitives/register.lua); this repeats the "accept" of its newest change, which any
-- node may get late or twice. A field `name` says what the record calls this node.
-- KEYS: record
-- ARGV: number, value, name, retention (ms)
-- Returns 1 if the node keeps this change now
local state = redis.call('HMGET', KEYS[1], 'promised', 'accepted')
local promised, accepted = tonumber(state[1]) or 0, tonumber(state[2]) or 0
local number = tonumber(ARGV[1])
if number > promised then
  redis.call('HSET', KEYS[1], 'promised', ARGV[1], 'by', '-', 'accepted', ARGV[1], 'value', ARGV[2])
elseif number ~= accepted then
  return 0
end
redis.call('HSET', KEYS[1], 'name', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return 1
