-- The beginning of lock.lua, and all of it while nobody waits. It stands ahead of the queue's
-- functions, because a server makes all functions of a script anew in each call. PTTL tells whether
-- anybody waits: a user may lack the right to EXISTS (docs/access.md).
if op == 'acquire' then
  if too_late() then return {-1, now} end
  local owner = ARGV[2]
  if redis.call('PTTL', KEYS[3]) == -2
    and redis.call('SET', KEYS[1], owner, 'NX', 'PX', ARGV[3]) then
    return {1, next_fence(KEYS[2], ARGV[4], ARGV[6]), '', now}
  end
elseif op == 'release' then
  if redis.call('GET', KEYS[1]) ~= ARGV[2] then return {0, '', now} end
  redis.call('DEL', KEYS[1])
  if not KEYS[3] or not ARGV[4] and redis.call('PTTL', KEYS[3]) == -2 then return {1, '', now} end
end
