-- The acquire and the release of a mutex while nobody waits, or while this process may go before those
-- who wait; lock.lua lists arguments and replies, and does all other cases. No function may be made
-- before this: a server makes all functions of a script anew in each call (decision 0027 has the cost).
-- PTTL tells whether anybody waits: a user may lack the right to EXISTS (docs/access.md).
-- won: whether the lock was granted here. before: the counter's old value; false if it had none, nil if
-- it was not written.
-- waiter: the first ticket, if it is another's, lives and waits for a whole name.
local won, before
local waiter = ''
if op == 'acquire' then
  local floor, not_after, keep = ARGV[4] + 0, ARGV[5] + 0, ARGV[6]
  if not_after > 0 and now > not_after then return {-1, now} end
  if ARGV[10] == '1' and not KEYS[4] then
    local head = redis.pcall('ZRANGE', KEYS[3], 0, 0)[1]
    if head and head ~= ARGV[8] and call('GET', KEYS[3] .. ':#' .. head) == '1' then
      waiter = head
    end
  end
  won = not ARGV[11] and (waiter ~= '' or call('PTTL', KEYS[3]) == -2)
    and call('SET', KEYS[1], ARGV[2], 'NX', 'PX', ARGV[3])
  if won and waiter ~= '' and call('ZREM', KEYS[3], ARGV[8]) == 1 then
    call('DEL', KEYS[3] .. ':#' .. ARGV[8])
  end
  if won and floor >= 0 and floor <= now + FLOOR_AHEAD then
    if floor > now then keep = keep + math.ceil((floor - now) / 1000) end
    before = call('SET', KEYS[2], ARGV[4], 'PX', keep, 'GET')
    local counter = tonumber(before or now - FLOOR_BEHIND)
    local sound = counter and counter >= 0 and counter % 1 == 0
    if sound and counter < floor then return {1, floor, waiter, now} end
  end
elseif op == 'release' then
  if call('GET', KEYS[1]) ~= ARGV[2] then return {0, '', now} end
  call('DEL', KEYS[1])
  if ARGV[3] == '1' then return {1, '', now} end
  if not KEYS[3] or not ARGV[4] and call('PTTL', KEYS[3]) == -2 then return {1, '', now} end
end
