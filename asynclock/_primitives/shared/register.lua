-- A register on one node: an acceptor of CASPaxos, with one round of consensus per change.
-- Reasons: docs/decisions/0014. Numbers are below 2^53; `by` is the owner of a number.
-- KEYS: register, a hash of promised, by, accepted, value; every write sets its expiry
-- prepare number by ms not_after         {1, accepted, value | false, now}: promised
-- accept  number by ms not_after value   {1, now}
--         both also {0, promised, now}: a higher number came first | {-1, now}: too late
-- read, inspect                          {1, accepted, value | false, pttl, now}: read is a vote
local state = redis.call('HMGET', KEYS[1], 'promised', 'by', 'accepted', 'value')
local failure = damaged(state[1] or 0, KEYS[1]) or damaged(state[3] or 0, KEYS[1])
if failure then return failure end
local promised, accepted = tonumber(state[1]) or 0, tonumber(state[3]) or 0
if op == 'read' or op == 'inspect' then
  return {1, accepted, state[4], redis.call('PTTL', KEYS[1]), now}
elseif too_late() then
  return {-1, now}
end

local number, by, ms = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
if number < promised or (number == promised and by ~= state[2]) then
  return {0, promised, now}
elseif op == 'prepare' then
  redis.call('HSET', KEYS[1], 'promised', ARGV[2], 'by', by)
  if redis.call('PTTL', KEYS[1]) < ms then redis.call('PEXPIRE', KEYS[1], ms) end
  return {1, accepted, state[4], now}
else
  redis.call('HSET', KEYS[1], 'promised', ARGV[2], 'by', by, 'accepted', ARGV[2], 'value', ARGV[6])
  redis.call('PEXPIRE', KEYS[1], ms)
  return {1, now}
end
