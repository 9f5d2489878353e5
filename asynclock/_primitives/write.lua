-- The writer: a mutex that shares a queue with readers (phases.lua); holding.lua follows.
-- KEYS: lock, counter, queue, readers (owner -> expiry in ms)
-- acquire owner ttl floor not_after retention [ms ticket number [barge [reader]]]
--         granted if nobody has the name and no ticket goes before ours, or barge is 1
--         with a reader: its upgrade, which goes first, and for which it is not in the way
--         if refused, the ticket waits for ms (0: it leaves no ticket)
--   {1, fence, first, now} | {-1, now} | {0, left, holder, number, 0, free, {ticket...}, now}
--         first: the first ticket that still waits, '' for none
--         left: of the lock or the last reader; holder: of the lock, or the reader that expires
--         first; if free is 1, these are the first ticket's
--         number: of our ticket (0: it doesn't wait here); then the tickets that were woken
-- release owner [keep [ticket ms number]]   {1 | 0, {ticket...}, now}: the tickets that were woken
--         keep 1: wakes nobody, because the owner's process asks again or sends pass; its turn
--         ends all the same, because others may ask first
--         keep 2: the attempt failed, and was no turn
--         with a ticket: the attempt failed, and was no turn; the ticket goes on waiting
-- leave   ticket   {1, {ticket...}, now}: the ticket waits no more
-- pass             {1, {ticket...}, now}: this process doesn't ask again

-- The number that the waiter has settled on, or the one that we gave, or a new one: the floor in ms,
-- which all nodes were sent alike, unless other writers have that already. In µs it would be above
-- the numbers of readers from the year 2096 on.
local function numbered(queue, ticket, number, floor)
  if number > 0 then return number end
  local stored = tonumber(redis.call('ZSCORE', queue, ticket))
  if stored then return stored end
  local others = redis.call('ZRANGEBYSCORE', queue, FIRST, '(' .. LATER, 'WITHSCORES')
  local last = tonumber(others[#others]) or 0
  return math.max(math.floor(floor / 1000), FIRST, last + 1)
end

local function acquire(KEYS, ARGV)
  if too_late() then return {-1, now} end
  local lock, queue, readers = KEYS[1], KEYS[3], KEYS[4]
  local head, failure = first(queue)
  if failure and not head then return failure end
  local owner, ms = ARGV[2], tonumber(ARGV[7] or 0)
  local ticket, number, barge, reader = ARGV[8] or owner, tonumber(ARGV[9] or 0), ARGV[10], ARGV[11]
  local floor = tonumber(ARGV[4])
  if floor < 0 then floor = now end
  if head and number > 0 and ms > 0 then
    -- We may be the first, on a node that forgot us or gave us another number; or no longer.
    if tonumber(redis.call('ZSCORE', queue, ticket)) ~= number then
      join(queue, ticket, ms, number)
      head = first(queue)
    end
  end
  local holder, left = redis.call('GET', lock)
  local ours = holder == owner or barge == '1' or reader or not head or head == ticket
    or tonumber(redis.call('ZSCORE', queue, head)) >= LATER
  if holder and holder ~= owner then
    left = redis.call('PTTL', lock)
  else
    -- Name the reader that expires first: nearly always all nodes know the same one.
    local known = nobody and {} or redis.call('ZRANGE', readers, 0, 1)
    if known[1] then
      redis.call('ZREMRANGEBYSCORE', readers, '-inf', math.floor(now / 1000))
      known = redis.call('ZRANGE', readers, 0, 1)
    end
    holder = known[known[1] == reader and 2 or 1]
    if holder then
      left = math.ceil(redis.call('ZREVRANGE', readers, 0, 0, 'WITHSCORES')[2] - now / 1000)
    end
  end
  if ours and not holder then
    if head then
      leave(queue, ticket)
      head = first(queue)
    end
    redis.call('SET', lock, owner, 'PX', ARGV[3])
    return granted(next_fence(KEYS[2]), head or '')
  end
  if ms > 0 then
    number = join(queue, ticket, ms, reader and AHEAD or numbered(queue, ticket, number, floor))
  else
    number = 0
  end
  -- If a reader came before we took the name again, nobody has woken the others that go with it.
  local woken = first(queue) ~= ticket and wake_next(lock, queue, readers) or {}
  if holder then return {0, left, holder, number, 0, 0, woken, now} end
  return {0, redis.call('PTTL', derived(queue, head)), head, number, 0, 1, woken, now}
end

local function release(KEYS, ARGV)
  local lock, queue, readers = KEYS[1], KEYS[3], KEYS[4]
  if redis.call('GET', lock) ~= ARGV[2] then return {0, {}, now} end
  redis.call('DEL', lock)
  local head, failure = first(queue)
  local ticket = ARGV[4]
  if failure and not head then return failure end
  if not head and not ticket then return {1, {}, now} end
  if ticket then
    join(queue, ticket, ARGV[5], numbered(queue, ticket, tonumber(ARGV[6]), now))
  elseif ARGV[3] ~= '2' then
    end_turn(queue)
    if ARGV[3] == '1' then return {1, {}, now} end
  end
  return {1, wake_next(lock, queue, readers), now}
end

if op == 'acquire' then
  return acquire(KEYS, ARGV)
elseif op == 'release' then
  return release(KEYS, ARGV)
elseif op == 'batch' then
  return each(acquire, release)
elseif op == 'leave' or op == 'pass' then
  if op == 'leave' then leave(KEYS[3], ARGV[2]) end
  return {1, wake_next(KEYS[1], KEYS[3], KEYS[4]), now}
end
