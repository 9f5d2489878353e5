-- The mutex on one node, with a queue (queue.lua); uncontended.lua, batch.lua and quiet.lua come before it
-- and holding.lua follows. Fences: docs/fencing.md; the differential test is tests/model/.
-- KEYS: lock, counter, queue; in acquire, leave and pass also the neighbours (other slots)
-- acquire owner ttl floor not_after retention [ms [ticket number [barge [from]]]]
--         granted if the lock is free and no ticket waits, or ours is the first, or barge is 1;
--         with from: only in the place of that owner, even if others wait; it leaves no ticket
--         if refused, the ticket (the owner if not given) waits for ms (0: it leaves no ticket);
--         not if another slot is free, unless its number is -1: it has none yet
--   {1, fence, first, now} | {-1, now} | {0, left, holder, number, rank, free, now}
--         first: the first ticket that still waits, '' for none; it was woken if a slot is free
--         left, holder: of the lock; if free is 1 the lock is free, and these are the first ticket's
--         number, rank: of our ticket (number 0: it doesn't wait here); rank 0 is the first
--   with neighbours also before now: '10...' 1 = taken or reserved for the first ticket
-- release owner [1 | 0 [ticket ms number]]   {1 | 0, first, now}
--         1: wakes nobody, because the owner's process asks again or sends pass; first is ''
--         2, of an attempt that failed: as without it
--         with a ticket: the attempt failed, but its ticket goes on waiting
-- rest    owner ms till           {1 | 0, '', now}: releases, but nobody gets the lock for ms, or until
--         our clock shows till (0: unknown) if that is sooner; 1 also if it rests already
-- leave   ticket   {1 = the lock may be free | 0, first, now}: the ticket waits no more
-- pass             {1 = the lock is free | 0, first, now}: if the lock is free, the first is woken
local function slots(KEYS)
  -- Which neighbours are taken, whether any is free, and ms until the first of them is.
  local taken, free, left = {}, false
  for i = 4, #KEYS do
    local other = redis.call('PTTL', KEYS[i])
    taken[i - 3] = other == -2 and '0' or '1'
    free = free or other == -2
    if other >= 0 and (not left or other < left) then left = other end
  end
  return table.concat(taken), free, left
end

-- Returns whether the first waiter, whose ticket has this value, may see a free slot although we see
-- none: it asks about other slots, or there are more slots than one request covers.
local WINDOW = 64
local function may_find(value)
  return value and value ~= GO and (value ~= WAITS or tonumber(WAITS) >= WINDOW)
end

local function acquire(KEYS, ARGV)
  if too_late() then return {-1, now} end
  local failure = mistyped(KEYS[3])
  if failure then return failure end
  local owner, queue, ms = ARGV[2], KEYS[3], tonumber(ARGV[7] or 0)
  local ticket, number, barge = ARGV[8] or owner, tonumber(ARGV[9] or 0), ARGV[10] == '1'
  local floor, head, joined = tonumber(ARGV[4]), first(queue), false
  if floor < 0 then floor = now end
  local settled = tonumber(head == ticket and redis.call('ZSCORE', queue, ticket) or 0)
  if head and number > 0 and ms > 0 and settled ~= number then
    -- We may be the first, on a node that forgot us or gave us another number; or no longer.
    number, joined = join(queue, ticket, ms, number), true
    head = first(queue)
  end
  local ours, holder = barge or not head or head == ticket
  if ARGV[11] then -- a lease that was detached is resumed; '': it has ended, and nobody has the name
    ours, holder = true, redis.call('GET', KEYS[1]) or ''
    if holder == ARGV[11] then holder = owner end
    if holder == owner then redis.call('SET', KEYS[1], owner, 'PX', ARGV[3]) end
  elseif not ours or not redis.call('SET', KEYS[1], owner, 'NX', 'PX', ARGV[3]) then
    holder = redis.call('GET', KEYS[1])
    if holder == owner then redis.call('SET', KEYS[1], owner, 'PX', ARGV[3]) end
  end
  if holder == owner or holder == nil then
    local next_one = ''
    if head then
      leave(queue, ticket)
      local waiter, value = first(queue)
      local _, free = slots(KEYS)
      if free or may_find(value) then wake(queue) end
      next_one = waiter or ''
    end
    return granted(next_fence(KEYS[2]), next_one)
  end

  local taken, free, left = slots(KEYS)
  if ours and free and number >= 0 then
    number = 0 -- the other slot is ours for the asking: no need to wait
  elseif ms == 0 then
    number = 0
  elseif not joined then
    number = join(queue, ticket, ms, number, floor)
  end
  local reserved = not ours and (free or not holder)
  if reserved then
    wake(queue)
    taken = string.rep('1', #taken)
    holder, left = head, redis.call('PTTL', derived(queue, head))
  else
    local pttl = redis.call('PTTL', KEYS[1])
    if not left or pttl < left then left = pttl end
  end
  local rank = number > 0 and redis.call('ZRANK', queue, ticket) or 0
  free = reserved and 1 or 0
  if KEYS[4] then return {0, left, holder, number, rank, free, taken, now} end
  return {0, left, holder, number, rank, free, now}
end

local function release(KEYS, ARGV)
  if op == 'batch' then -- otherwise uncontended.lua has deleted the key
    if redis.call('GET', KEYS[1]) ~= ARGV[2] then return {0, '', now} end
    redis.call('DEL', KEYS[1])
  end
  local queue, ticket = KEYS[3], ARGV[4]
  local failure = mistyped(queue)
  if failure then return failure end
  if ticket then join(queue, ticket, ARGV[5], tonumber(ARGV[6]), now) end
  return {1, wake(queue), now}
end

if won then -- by uncontended.lua, but the floor was of no use, or not above the counter, or that is damaged
  local fence = before == nil and next_fence(KEYS[2])
    or fence_above(before, KEYS[2], tonumber(ARGV[4]), ARGV[6])
  return granted(fence, waiter)
elseif op == 'acquire' then
  return acquire(KEYS, ARGV)
elseif op == 'release' then
  return release(KEYS, ARGV)
elseif op == 'batch' then
  return each(acquire, release)
elseif op == 'rest' then
  local value, rests = redis.call('GET', KEYS[1]), '#rests:' .. ARGV[2]
  if value == ARGV[2] then
    local ms, till = tonumber(ARGV[3]), tonumber(ARGV[4])
    if till > 0 then ms = math.max(1, math.min(ms, math.ceil((till - now) / 1000))) end
    redis.call('SET', KEYS[1], rests, 'PX', ms)
  end
  return {(value == ARGV[2] or value == rests) and 1 or 0, '', now}
elseif op == 'leave' or op == 'pass' then
  local queue, value = KEYS[3]
  local failure = mistyped(queue)
  if failure then return failure end
  if op == 'leave' then
    local head = first(queue)
    leave(queue, ARGV[2])
    if head == ARGV[2] then value = select(2, first(queue)) end
  end
  local _, other_free = slots(KEYS)
  if not other_free and redis.call('PTTL', KEYS[1]) ~= -2 and not may_find(value) then
    return {0, '', now}
  end
  return {1, wake(queue), now}
end
