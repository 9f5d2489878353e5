-- The queue in front of the mutex (lock.lua follows and does everything else).
-- KEYS: lock, counter; in acquire and leave also: queue (ticket -> place), waiters (ticket -> the
--       ms at which it counts as crashed)
-- acquire … ticket patience   refused unless the lock is free and the ticket is first in the queue;
--                             a refused ticket joins the queue, if it isn't there, and counts as
--                             alive for patience ms (0: it doesn't join)
-- leave   ticket              {1 = the next in the queue may have the lock | 0, now}
local function step_out(ticket)
  redis.call('ZREM', KEYS[3], ticket)
  redis.call('ZREM', KEYS[4], ticket)
end

if op == 'leave' then
  step_out(ARGV[2])
  local free = redis.call('EXISTS', KEYS[1]) == 0 and redis.call('EXISTS', KEYS[3]) == 1
  if not free then return {0, now} end
  -- Perhaps only the leaving waiter was woken by the release: change the key to wake the others.
  redis.call('SET', KEYS[1], '', 'PX', 1)
  redis.call('DEL', KEYS[1])
  return {1, now}
elseif op == 'acquire' and not too_late() then
  local ticket, patience, ms = ARGV[7], tonumber(ARGV[8]), math.floor(now / 1000)
  for _, crashed in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', ms)) do
    step_out(crashed)
  end
  local holder, first = redis.call('GET', KEYS[1]), redis.call('ZRANGE', KEYS[3], 0, 0)[1]
  if holder == ARGV[2] then holder = nil end
  if holder or (first and first ~= ticket) then
    if patience > 0 then
      if not redis.call('ZSCORE', KEYS[3], ticket) then
        -- After the last in the queue, even if the clock has gone back.
        local last = redis.call('ZRANGE', KEYS[3], -1, -1, 'WITHSCORES')
        local place = math.max(now, (tonumber(last[2]) or 0) + 1)
        redis.call('ZADD', KEYS[3], string.format('%.0f', place), ticket)
      end
      redis.call('ZADD', KEYS[4], ms + patience, ticket)
      redis.call('PEXPIRE', KEYS[3], patience)
      redis.call('PEXPIRE', KEYS[4], patience)
    end
    if holder then return {0, redis.call('PTTL', KEYS[1]), holder, now} end
    return {0, math.max(0, redis.call('ZSCORE', KEYS[4], first) - ms), first, now}
  end
  step_out(ticket)
end
