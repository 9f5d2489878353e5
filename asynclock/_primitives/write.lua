-- The writer: a gate in front of the mutex (lock.lua follows and does everything else).
-- KEYS: lock, counter; in acquire and leave also: readers (owner -> expiry in ms), intent
-- acquire … ticket patience   refused while there are readers or a writer; then the intent keeps
--                             new readers out for patience ms (0: it doesn't)
--         … ticket patience reader    as above, but this reader doesn't count (an upgrade)
-- leave   ticket              {1 = readers are let in again | 0, now}
if op == 'leave' then
  local ours = redis.call('GET', KEYS[4]) == ARGV[2]
  return {ours and redis.call('DEL', KEYS[4]) or 0, now}
elseif op == 'acquire' and not too_late() then
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
end
