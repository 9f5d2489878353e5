-- The acquire and the release of a mutex while nobody waits; lock.lua lists arguments and replies, and
-- does all other cases. No function may be made before this: a server makes all functions of a script
-- anew in each call (decision 0027 has the cost).
-- PTTL tells whether anybody waits: a user may lack the right to EXISTS (docs/access.md).
-- won: whether the lock was granted here. before: the counter's old value; false if it had none, nil if
-- it was not written.
local won, before
if op == 'acquire' then
  local floor, not_after, keep = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
  if not_after > 0 and now > not_after then return {-1, now} end
  won = redis.call('PTTL', KEYS[3]) == -2
    and redis.call('SET', KEYS[1], ARGV[2], 'NX', 'PX', ARGV[3])
  if won and floor >= 0 and floor <= now + FLOOR_AHEAD then
    if floor > now then keep = keep + math.ceil((floor - now) / 1000) end
    before = redis.call('SET', KEYS[2], ARGV[4], 'PX', keep, 'GET')
    if (tonumber(before or '') or now - FLOOR_BEHIND) < floor then return {1, floor, '', now} end
  end
elseif op == 'release' then
  if redis.call('GET', KEYS[1]) ~= ARGV[2] then return {0, '', now} end
  redis.call('DEL', KEYS[1])
  if not KEYS[3] or not ARGV[4] and redis.call('PTTL', KEYS[3]) == -2 then return {1, '', now} end
end
