-- Several mutexes as one: all or none, with one fence for all. The keys are those of each mutex.
-- queue.lua goes before this: a release wakes the first waiter of each name. Without a ticket this
-- takes the names when all are free, even if others wait for one of them; with a ticket, which only
-- rivals take whose votes were split, it must be the first in the queue of each name.
-- KEYS: lock, counter for each name
-- acquire owner ttl floor not_after retention [ms ticket number]
--   {1, fence, '', now} | {-1, now} | {0, left, holder, number, 0, free, woken, now}
--         left: of the lock that is taken for longest; holder: of the first name that is taken. If
--         free is 1 none is taken, and these are those of a ticket that goes before ours
--         number: of our ticket (0: it doesn't wait here); woken: the keys of tickets that were woken
-- release owner [keep [ticket ms number]]       {1 | 0, woken, now}: 1 = the owner had all
--         with a ticket: the attempt failed, but its ticket goes on waiting
-- leave   ticket                                {1, woken, now}: the ticket waits no more
local function holders(KEYS, first, last)
  local locks = {}
  for i = first, last, 2 do locks[#locks + 1] = KEYS[i] end
  return redis.call('MGET', unpack(locks))
end

-- Does one thing with the queue of each name, and returns the keys of the tickets that it woke. Stops
-- at a queue of another type, and returns the error.
local function each_queue(KEYS, act)
  local woken = {}
  for i = 1, #KEYS, 2 do
    local queue = derived(KEYS[i], 'queue')
    local wrong = mistyped(queue)
    if wrong then return wrong end
    local ticket = act(queue, KEYS[i])
    if ticket and ticket ~= '' then woken[#woken + 1] = derived(queue, ticket) end
  end
  return woken
end

-- Puts the ticket into all queues, with the same number: then two calls that want several names have
-- the same order wherever they meet.
local function join_all(KEYS, ticket, ms, number, floor)
  if number <= 0 then
    each_queue(KEYS, function(queue)
      local stored = tonumber(redis.call('ZSCORE', queue, ticket))
      local last = tonumber(redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2])
      number = math.max(number, floor, stored or (last or 0) + 1)
    end)
  end
  each_queue(KEYS, function(queue) join(queue, ticket, ms, number) end)
  return number
end

-- Wakes the first ticket where the lock is free.
local function wake_if_free(queue, lock)
  return redis.call('PTTL', lock) == -2 and wake(queue)
end

-- Takes locks that nobody else has; returns one fence for all, or an error.
local function take(KEYS, owner)
  local highest, differ
  for i = 1, #KEYS, 2 do
    if not call('SET', KEYS[i], owner, 'NX', 'PX', ARGV[3]) then
      call('GET', KEYS[i]) -- raises the right error for a key of another type
      call('PEXPIRE', KEYS[i], ARGV[3])
    end
    local fence = next_fence(KEYS[i + 1])
    if type(fence) == 'table' then return fence end
    differ = highest and fence ~= highest or differ
    if not highest or fence > highest then highest = fence end
  end
  for i = 2, differ and #KEYS or 0, 2 do keep_fence(KEYS[i], highest, ARGV[6]) end
  return highest
end

local function acquire(KEYS, ARGV)
  if too_late() then return {-1, now} end
  local owner, holder, left, free = ARGV[2], nil, -1, 0
  local before = holders(KEYS, 1, #KEYS)
  for i, other in ipairs(before) do
    if other and other ~= owner then
      holder, left = holder or other, math.max(left, redis.call('PTTL', KEYS[2 * i - 1]))
    end
  end
  local ms, ticket, number = tonumber(ARGV[7] or 0), ARGV[8], tonumber(ARGV[9] or 0)
  local woken = {}
  if ms > 0 then
    local floor = tonumber(ARGV[4])
    number = join_all(KEYS, ticket, ms, number, floor < 0 and now or floor)
    woken = each_queue(KEYS, function(queue, lock)
      local head = first(queue)
      if head == ticket then return end
      if not holder then holder, left, free = head, redis.call('PTTL', derived(queue, head)), 1 end
      return wake_if_free(queue, lock)
    end)
    if woken.err then return woken end
  end
  if holder then return {0, left, holder, number, 0, free, woken, now} end
  if ms > 0 then each_queue(KEYS, function(queue) leave(queue, ticket) end) end
  return granted(take(KEYS, owner), '')
end

-- Deletes the keys that the owner still has, even if others have expired.
local function release(KEYS, ARGV)
  local queues, ours = {}, {}
  for i, holder in ipairs(holders(KEYS, 1, #KEYS)) do
    local lock = KEYS[2 * i - 1]
    queues[i] = derived(lock, 'queue')
    if holder == ARGV[2] then ours[#ours + 1] = lock end
  end
  if #ours > 0 then redis.call('DEL', unpack(ours)) end
  if ARGV[4] and #ours > 0 then join_all(KEYS, ARGV[4], ARGV[5], tonumber(ARGV[6]), now) end
  local woken, failure = {}
  if try('EXISTS', unpack(queues)) ~= 0 then -- a user without the right to EXISTS gets an error here
    for _, lock in ipairs(ours) do
      local queue = derived(lock, 'queue')
      local wrong = mistyped(queue)
      local ticket = wrong and '' or wake(queue)
      if ticket ~= '' then woken[#woken + 1] = derived(queue, ticket) end
      failure = failure or wrong
    end
  end
  return failure or {#ours == #queues and 1 or 0, woken, now}
end

-- Does a batch, with one call for what its names have in common: the releases if nobody waits for any of
-- their names, the acquires if all their names are free.
local function batch()
  -- Where the locks and the counters of all names begin in KEYS, which batch.lua describes.
  local locks, columns = {0}, {counters}
  for k = 1, (counters + releases) / names - 2, 2 do
    locks[#locks + 1], columns[#columns + 1] = k * names, (k + 1) * names
  end
  local queues, wanted, held, own = {}, {}, {}, {}
  for _, column in ipairs(locks) do
    for i = 1, releases do queues[#queues + 1] = derived(KEYS[column + i], 'queue') end
    for i = releases + 1, names do wanted[#wanted + 1] = KEYS[column + i] end
  end
  nobody = releases > 0 and try('EXISTS', unpack(queues)) == 0

  for c, column in ipairs(nobody and locks or {}) do
    held[c] = call('MGET', unpack(KEYS, column + 1, column + releases))
  end
  for i = 1, releases do
    local whole = nobody
    for c = 1, #locks do whole = whole and held[c][i] == ARGV[7 + i] end
    if whole then
      for _, column in ipairs(locks) do own[#own + 1] = KEYS[column + i] end
      replies[i] = 1
    else
      rest[#rest + 1] = i
    end
  end
  if own[1] then call('DEL', unpack(own)) end

  local free = releases < names and not too_late() and try('EXISTS', unpack(wanted)) == 0
  local keys, taken = {}, {}
  for i = releases + 1, names do
    local able = free
    for c = 1, free and #locks or 0 do
      local lock = KEYS[locks[c] + i]
      keys[2 * c - 1], keys[2 * c] = lock, KEYS[columns[c] + i]
      able = able and not taken[lock]
      taken[lock] = true
    end
    if able then
      local fence = safely(take, keys, ARGV[7 + i])
      replies[i] = fence
      if type(fence) == 'table' then odd = 1 end
    else
      rest[#rest + 1] = i
    end
  end
  return each(acquire, release)
end

if op == 'acquire' then
  return acquire(KEYS, ARGV)
elseif op == 'release' then
  return release(KEYS, ARGV)
elseif op == 'batch' then
  return batch()
elseif op == 'leave' then
  local woken = each_queue(KEYS, function(queue, lock)
    leave(queue, ARGV[2])
    return wake_if_free(queue, lock)
  end)
  return woken.err and woken or {1, woken, now}
end
local shared = false
local function has(first, last, owner)
  for _, holder in ipairs(holders(KEYS, first, last)) do
    if holder ~= owner then return false end
  end
  return true
end
local function prolong(first, last)
  for i = first, last, 2 do keep_for(KEYS[i], ARGV[2]) end
end
