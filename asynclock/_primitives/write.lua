-- The writer: a mutex with a gate (mutex.lua follows and does the rest).
-- KEYS: lock, counter; in acquire and leave also: readers (owner -> expiry in ms), intent
-- acquire owner ttl floor not_after retention ticket patience
--         {1, fence, now} | {0, pttl, holder, now} | {-1, now}
--                             refused while there are readers or a writer; then the intent keeps
--                             new readers out for patience ms (0: it doesn't)
--         … ticket patience reader    as above, but this reader doesn't count (an upgrade)
-- release owner               {1 | 0, now}
-- leave   ticket              {1 = readers are let in again | 0, now}
if op == 'leave' then
  local ours = redis.call('GET', KEYS[4]) == ARGV[2]
  return {ours and redis.call('DEL', KEYS[4]) or 0, now}
elseif op == 'acquire' then
  if too_late() then return {-1, now} end
  local ticket, patience = ARGV[7], tonumber(ARGV[8])
  local holder, left = redis.call('GET', KEYS[1]), 0
  if holder and holder ~= ARGV[2] then
    left = redis.call('PTTL', KEYS[1])
  else
    -- The reader with the latest expiry, unless it has expired.
    local last = redis.call('ZREVRANGE', KEYS[3], 0, ARGV[9] and 1 or 0, 'WITHSCORES')
    local at = last[1] == ARGV[9] and 3 or 1
    holder = nil
    if last[at] and tonumber(last[at + 1]) * 1000 > now then
      holder, left = last[at], math.ceil(last[at + 1] - now / 1000)
    end
  end
  local intent = redis.call('GET', KEYS[4])
  if holder then
    -- Not written each time, because each write wakes every reader that waits for the intent to
    -- go. A waiting writer asks again after half its patience, or a little later.
    if patience > 0 and (not intent or redis.call('PTTL', KEYS[4]) < patience * 3 / 4) then
      redis.call('SET', KEYS[4], ticket, 'PX', patience)
    end
    return {0, left, holder, now}
  end
  if intent == ticket then redis.call('DEL', KEYS[4]) end
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
  return {1, next_fence(KEYS[2], ARGV[4], ARGV[6]), now}
elseif op == 'release' then
  if redis.call('GET', KEYS[1]) ~= ARGV[2] then return {0, now} end
  redis.call('DEL', KEYS[1])
  return {1, now}
end
