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
  local fence, fences = 0, {}
  for i = 1, #KEYS, 2 do
    -- MGET also returns nil for a key of another type, which must not be overwritten: then SET NX
    -- fails, and GET raises the right error.
    if before[(i + 1) / 2] then
      redis.call('PEXPIRE', KEYS[i], ARGV[3])
    elseif not redis.call('SET', KEYS[i], owner, 'NX', 'PX', ARGV[3]) then
      return redis.call('GET', KEYS[i])
    end
    fences[i] = next_fence(KEYS[i + 1], ARGV[4], ARGV[6])
    if type(fences[i]) == 'table' then return fences[i] end
    fence = math.max(fence, fences[i])
  end
  for i = 1, #KEYS, 2 do
    if fences[i] < fence then keep_fence(KEYS[i + 1], fence, ARGV[6]) end
  end
  return granted(fence, '')
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
  if redis.call('EXISTS', unpack(queues)) > 0 then
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

-- Does a batch while nobody waits for any of its names, with one call for what the names have in
-- common (as quiet.lua for mutexes). Leaves what it can't do to `acquire` and `release`.
local function batch()
  local releases, names, odd = tonumber(ARGV[2]), #ARGV - 7, 0
  -- Where the locks and the counters of all names begin in KEYS, which batch.lua describes.
  local locks, counters = {0}, {#KEYS - names}
  for k = 1, (#KEYS - names + releases) / names - 2, 2 do
    locks[#locks + 1], counters[#counters + 1] = k * names, (k + 1) * names
  end
  local queues, replies, rest, held, own = {}, {}, {}, {}, {}
  for _, column in ipairs(locks) do
    for i = 1, names do queues[#queues + 1] = derived(KEYS[column + i], 'queue') end
  end
  local quiet = redis.pcall('EXISTS', unpack(queues)) == 0

  for c, column in ipairs(quiet and releases > 0 and locks or {}) do
    held[c] = call('MGET', unpack(KEYS, column + 1, column + releases))
  end
  for i = 1, releases do
    local whole = quiet
    for c = 1, #locks do whole = whole and held[c][i] == ARGV[7 + i] end
    if whole then
      for _, column in ipairs(locks) do own[#own + 1] = KEYS[column + i] end
      replies[i] = 1
    else
      rest[#rest + 1] = i
    end
  end
  if own[1] then call('DEL', unpack(own)) end

  local fence, text, keep = least(ARGV[4], ARGV[6])
  quiet = quiet and not too_late()
  for i = releases + 1, names do
    local won, mine = 0, {}
    for c, column in ipairs(locks) do mine[c] = KEYS[column + i] end
    -- A SET that is taken back would wake, in vain, the waiters for a free name and a taken one.
    local free = quiet and redis.pcall('EXISTS', unpack(mine)) == 0
    while free and won < #locks do
      local reply = redis.pcall('SET', mine[won + 1], ARGV[7 + i], 'NX', 'PX', ARGV[3])
      if not reply or not reply.ok then break end
      won = won + 1
    end
    if won == #locks then
      local highest, fences, failure = 0, {}
      for c, column in ipairs(counters) do
        if failure then -- an acquire alone takes one name after the other, and stops there
          call('DEL', mine[c])
        else
          local counter = KEYS[column + i]
          local before = redis.pcall('SET', counter, text, 'PX', keep, 'GET')
          fences[c] = type(before) == 'table' and before
            or fence_above(before, counter, fence, ARGV[6])
          failure = type(fences[c]) == 'table' and fences[c]
          highest = failure and highest or math.max(highest, fences[c])
        end
      end
      for c, one in ipairs(failure and {} or fences) do
        if one < highest then keep_fence(KEYS[counters[c] + i], highest, ARGV[6]) end
      end
      replies[i] = failure or highest
      if failure then odd = 1 end
    else
      for c = 1, won do call('DEL', mine[c]) end
      rest[#rest + 1] = i
    end
  end
  local found = each(acquire, release, replies, rest)
  if odd == 1 then found[1] = 1 end
  return found
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
