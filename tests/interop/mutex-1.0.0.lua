-- The beginning of all scripts. ARGV[1] is the operation, ARGV[2] the owner (extend has several).
-- Every reply ends with this node's clock in microseconds, so that each client can check the clock:
-- only a reading in between shows that a clock has jumped and soon jumped back.
local op = ARGV[1]
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- A floor this many µs ahead of our own clock comes from a client with a wrong clock: ignore it.
local FLOOR_AHEAD = 60000000

-- Our clock may be this many µs behind the floors that we believe. So a counter that has expired
-- stood further back than that (tests/model: C1 to C3), and a missing one counts as if it stood there.
local FLOOR_BEHIND = 60000000

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
  local floor, not_after, keep = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
  if not_after > 0 and now > not_after then return {-1, now} end
  if ARGV[10] == '1' and not KEYS[4] then
    local head = redis.pcall('ZRANGE', KEYS[3], 0, 0)[1]
    if head and head ~= ARGV[8] and redis.call('GET', KEYS[3] .. ':#' .. head) == '1' then
      waiter = head
    end
  end
  won = not ARGV[11] and (waiter ~= '' or redis.call('PTTL', KEYS[3]) == -2)
    and redis.call('SET', KEYS[1], ARGV[2], 'NX', 'PX', ARGV[3])
  if won and waiter ~= '' and redis.call('ZREM', KEYS[3], ARGV[8]) == 1 then
    redis.call('DEL', KEYS[3] .. ':#' .. ARGV[8])
  end
  if won and floor >= 0 and floor <= now + FLOOR_AHEAD then
    if floor > now then keep = keep + math.ceil((floor - now) / 1000) end
    before = redis.call('SET', KEYS[2], ARGV[4], 'PX', keep, 'GET')
    local counter = before and tonumber(before) or not before and now - FLOOR_BEHIND
    if counter and counter >= 0 and counter < floor then return {1, floor, waiter, now} end
  end
elseif op == 'release' then
  if redis.call('GET', KEYS[1]) ~= ARGV[2] then return {0, '', now} end
  redis.call('DEL', KEYS[1])
  if ARGV[3] == '1' then return {1, '', now} end
  if not KEYS[3] or not ARGV[4] and redis.call('PTTL', KEYS[3]) == -2 then return {1, '', now} end
end

-- The functions that scripts have in common (clock.lua comes before).

-- Is the acquire so late that its client has given up? 0: the client could not give a time.
local function too_late()
  local not_after = tonumber(ARGV[5])
  return not_after > 0 and now > not_after
end

-- Milliseconds; a counter that a wrong clock has put further ahead than a day expires before its time.
local LONGEST_LEAD = 86400000

-- A counter stays until our clock shows its value plus the retention, so it stays for longer if it is
-- ahead of our clock (tests/model: N3). docs/tuning.md has the sum.
local function time_to_keep(fence, retention)
  if fence <= now then return retention end
  return retention + math.min(LONGEST_LEAD, math.ceil((fence - now) / 1000))
end

-- '%.0f', because tostring keeps only 14 digits.
local function keep_fence(key, fence, retention)
  redis.call('SET', key, string.format('%.0f', fence), 'PX', time_to_keep(fence, retention))
end

-- Lets a key live for `ms` milliseconds from now, or for longer if it does already: a request that is
-- late, after one for longer, shortens nothing.
local function keep_for(key, ms)
  if redis.call('PTTL', key) < tonumber(ms) then redis.call('PEXPIRE', key, ms) end
end

-- The least value that a counter gets: its number, its text, and the milliseconds to keep it. A client
-- that knows too few clocks sends -1; then our own clock is the floor.
local function least(floor, retention)
  local fence = tonumber(floor)
  if fence < 0 then
    fence = now
  elseif fence > now + FLOOR_AHEAD then
    fence = 0
  end
  if fence ~= tonumber(floor) then floor = string.format('%.0f', fence) end
  return fence, floor, time_to_keep(fence, retention)
end

-- Returns an error that names the key if this is no number of ours, as after a change by hand. From
-- 2^53 on two numbers in a row may be equal, so the next number must still be below that.
local function damaged(text, key)
  local number = tonumber(text)
  if number and number >= 0 and number < 9007199254740991 and number % 1 == 0 then return nil end
  return {err = 'WRONGTYPE ' .. key .. ' must keep a whole number from 0 to 2^53 - 2'}
end

-- Returns the counter's value, 0 if there is none, or an error that names the key.
local function counter_at(key)
  local text = redis.call('GET', key)
  return text and (damaged(text, key) or tonumber(text)) or 0
end

-- The fence above the counter's value `before`, which was overwritten with `fence`; or an error that
-- names the key. Then the damaged value is put back, because a missing one would count as an old one.
local function fence_above(before, key, fence, retention)
  local failure = before and damaged(before, key)
  if failure then
    redis.call('SET', key, before, 'PX', retention)
    return failure
  end
  before = tonumber(before or now - FLOOR_BEHIND)
  if before < fence then return fence end
  keep_fence(key, before + 1, retention)
  return before + 1
end

-- The reply to an acquire that was granted with this fence, unless that is an error.
local function granted(fence, next_one)
  if type(fence) == 'table' then return fence end
  return {1, fence, next_one, now}
end

-- Stores and returns the counter's next value, which is at least floor. The floor is nearly always
-- above the counter, so it is written first: that takes one call, and its text needs no formatting.
local function next_fence(key, floor, retention)
  local fence, text, keep = least(floor, retention)
  return fence_above(redis.call('SET', key, text, 'PX', keep, 'GET'), key, fence, retention)
end

-- Several releases and acquires of one loop tick in one call: releases first, then acquires.
-- KEYS: the locks of all names, then what follows the counter in the keys of one name (the first key of
-- each name, the second …: queue and neighbours), then the counters of the acquires
-- batch releases ttl floor not_after retention ms owner...
--   {odd, {reply...}, now}: a reply is 1 (released) or a fence (acquired) where nobody waits, otherwise
--   what `release` or `acquire` alone would reply, or that name's error; odd is 1 if any is not a number

-- An error at one name is the reply for that name alone. Before Redis 7 an error is no table.
local function safely(act, ...)
  local done, reply = pcall(act, ...)
  return done and reply or type(reply) == 'table' and reply or {err = tostring(reply)}
end

-- Does all names, or those of `rest`, which has the places of names that need a long reply. `acquire`
-- and `release` take the keys and the arguments of their operation.
local function each(acquire, release, replies, rest)
  local releases, names, odd = tonumber(ARGV[2]), #ARGV - 7, rest and 1 or 0
  local counters, keys = #KEYS - names, {}
  local release_args = {'release', ''}
  local acquire_args = {'acquire', '', ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]}
  for n = 1, rest and #rest or names do
    local i, reply = rest and rest[n] or n, nil
    keys[1], keys[2] = KEYS[i], i > releases and KEYS[counters + i] or ''
    for k = 1, (counters + releases) / names - 1 do keys[k + 2] = KEYS[k * names + i] end
    if i <= releases then
      release_args[2] = ARGV[7 + i]
      reply = safely(release, keys, release_args)
    else
      acquire_args[2] = ARGV[7 + i]
      reply = safely(acquire, keys, acquire_args)
    end
    local woken = reply[#reply - 1]
    if not rest and reply[1] == 1 and (woken == '' or type(woken) == 'table' and not woken[1]) then
      reply = i <= releases and 1 or reply[2]
    else
      odd = 1
    end
    replies[i] = reply
  end
  return {odd, replies, now}
end

-- The releases and acquires of a batch at names for which nobody waits: this file does for each name
-- what uncontended.lua does for one, apart from turns. It leaves the rest to lock.lua.
local replies, rest = {}, {}

if op == 'batch' then
  local call, releases, ttl, odd = redis.pcall, tonumber(ARGV[2]), ARGV[3], 0
  local names = #ARGV - 7
  local counters = #KEYS - names
  local fence, text, keep = least(ARGV[4], ARGV[6])
  -- One call for all queues. A user without the right to call EXISTS gets an error here.
  local quiet = call('EXISTS', unpack(KEYS, names + 1, 2 * names)) == 0

  for i = 1, releases do
    local reply = call('GET', KEYS[i])
    if reply == ARGV[7 + i] then
      reply = call('DEL', KEYS[i])
      if reply == 1 and not quiet and call('PTTL', KEYS[names + i]) ~= -2 then
        rest[#rest + 1] = i
      end
    elseif type(reply) ~= 'table' then
      reply = {0, '', now}
    end
    if reply ~= 1 then odd = 1 end
    replies[i] = reply
  end

  local late = too_late()
  for i = releases + 1, names do
    local reply = late and {-1, now}
    if not late and (quiet or call('PTTL', KEYS[names + i]) == -2) then
      reply = call('SET', KEYS[i], ARGV[7 + i], 'NX', 'PX', ttl)
    end
    if reply and reply.ok then
      local counter = KEYS[counters + i]
      local before = call('SET', counter, text, 'PX', keep, 'GET')
      local value = before and tonumber(before) or not before and now - FLOOR_BEHIND
      if type(before) == 'table' then
        reply = before
      elseif value and value >= 0 and value < fence then
        reply = fence
      else
        reply = safely(fence_above, before, counter, fence, ARGV[6])
      end
    elseif not reply then
      rest[#rest + 1] = i
    end
    if type(reply) == 'table' then odd = 1 end
    replies[i] = reply
  end
  if not rest[1] then return {odd, replies, now} end
end

-- The queue of a name on one node; lock.lua or multi.lua follows. Protocol: docs/guarantees.md.
-- The queue is a sorted set: each waiter's ticket and its number. A ticket is a key of its own, too:
-- it expires unless its waiter asks again, and the waiter tracks it, so a change wakes that waiter
-- and nobody else. Its value is the number of slots that the waiter asks about (1 for a whole name), and
-- 'go' once the waiter was woken. In a batch (batch.lua) all names have as many slots.
local asked = op == 'batch' and (#KEYS + ARGV[2]) / (#ARGV - 7) or #KEYS
local WAITS, GO = tostring(math.max(1, asked - 2)), 'go'

-- Whether no name of the batch has a queue: then none need be looked at.
local nobody = false

local function derived(key, kind)
  return key .. ':#' .. kind
end

-- Returns an error that names the queue's key if that has the wrong type; Redis's own would not.
local function mistyped(queue)
  local known = redis.pcall('ZSCORE', queue, '')
  if type(known) == 'table' and string.find(known.err, 'WRONGTYPE') then
    local kind = redis.pcall('TYPE', queue).ok or 'another type'
    return {err = 'WRONGTYPE ' .. queue .. ' must be a sorted set (of waiters), but is ' .. kind}
  end
end

-- Returns the first ticket whose waiter lives, and its value; removes dead ones before it. Returns nil
-- and an error if the queue's key has the wrong type.
local function first(queue)
  while not nobody do
    local found = redis.pcall('ZRANGE', queue, 0, 0)
    if found.err then return nil, mistyped(queue) or redis.call('ZRANGE', queue, 0, 0) end
    local ticket = found[1]
    if not ticket then return nil end
    local value = redis.call('GET', derived(queue, ticket))
    if value then return ticket, value end
    redis.call('ZREM', queue, ticket)
  end
end

-- Wakes the first waiter, unless that was done before; returns its ticket, '' if nobody waits.
local function wake(queue)
  local ticket, value = first(queue)
  if ticket and value ~= GO then
    redis.call('SET', derived(queue, ticket), GO, 'KEEPTTL')
  end
  return ticket or ''
end

-- Puts a ticket into the queue or keeps it there for ms; returns its number. A number above 0 is
-- the one that the waiter has settled on, and replaces what we gave. Otherwise a new ticket gets
-- the floor, which all nodes were sent alike, or a higher number if others have that already.
local function join(queue, ticket, ms, number, floor)
  nobody = false
  local stored = tonumber(redis.call('ZSCORE', queue, ticket))
  if number <= 0 then
    number = stored
    if not number then
      local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
      number = math.max(floor, (tonumber(last) or 0) + 1)
    end
  end
  if number ~= stored then redis.call('ZADD', queue, string.format('%.0f', number), ticket) end
  redis.call('SET', derived(queue, ticket), WAITS, 'PX', ms)
  redis.call('PEXPIRE', queue, ms)
  return number
end

local function leave(queue, ticket)
  redis.call('ZREM', queue, ticket)
  redis.call('DEL', derived(queue, ticket))
end

-- The mutex on one node, with a queue (queue.lua); uncontended.lua, batch.lua and quiet.lua come before it
-- and mutex.lua and holding.lua follow. Fences: docs/fencing.md; the differential test is tests/model/.
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
--         with a ticket: the attempt failed, but its ticket goes on waiting
-- rest    owner ms till           {1 | 0, '', now}: releases, but nobody gets the lock for ms, or until
--         our clock shows till (0: unknown) if that is sooner; 1 also if it rests already
-- leave   ticket   {1 = the lock may be free | 0, first, now}: the ticket waits no more
-- pass             {1 = the lock is free | 0, first, now}: if the lock is free, the first is woken
local function slots(KEYS)
  -- Which neighbours are taken, whether any is free, and ms until the first of them is.
  local taken, free, left = {}, false, nil
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
  local failure = mistyped(KEYS[3])
  if failure then return failure end
  local owner, queue, ms = ARGV[2], KEYS[3], tonumber(ARGV[7] or 0)
  local ticket, number, barge = ARGV[8] or owner, tonumber(ARGV[9] or 0), ARGV[10] == '1'
  local floor, head, joined = tonumber(ARGV[4]), first(queue), false
  if floor < 0 then floor = now end
  local settled = tonumber(head == ticket and redis.call('ZSCORE', queue, ticket) or 0)
  if head and number > 0 and ms > 0 and settled ~= number then
    -- We may be the first, on a node that forgot us or gave us another number; or no longer.
    number, joined = join(queue, ticket, ms, number, floor), true
    head = first(queue)
  end
  local ours, holder = barge or not head or head == ticket, nil
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
    return granted(next_fence(KEYS[2], ARGV[4], ARGV[6]), next_one)
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

local function release(KEYS, ARGV) -- the key is deleted
  local queue, ticket = KEYS[3], ARGV[4]
  local failure = mistyped(queue)
  if failure then return failure end
  if ticket then join(queue, ticket, ARGV[5], tonumber(ARGV[6]), now) end
  return {1, wake(queue), now}
end

if won then -- by uncontended.lua, but the floor was of no use, or not above the counter, or that is damaged
  local fence = before == nil and next_fence(KEYS[2], ARGV[4], ARGV[6])
    or fence_above(before, KEYS[2], tonumber(ARGV[4]), ARGV[6])
  return granted(fence, waiter)
elseif op == 'acquire' then
  return acquire(KEYS, ARGV)
elseif op == 'release' then
  return release(KEYS, ARGV)
elseif op == 'batch' then
  return each(acquire, release, replies, rest)
elseif op == 'rest' then
  local value, rests = redis.call('GET', KEYS[1]), '#rests:' .. ARGV[2]
  if value == ARGV[2] then
    local ms, till = tonumber(ARGV[3]), tonumber(ARGV[4])
    if till > 0 then ms = math.max(1, math.min(ms, math.ceil((till - now) / 1000))) end
    redis.call('SET', KEYS[1], rests, 'PX', ms)
  end
  return {(value == ARGV[2] or value == rests) and 1 or 0, '', now}
elseif op == 'leave' or op == 'pass' then
  local queue, value = KEYS[3], nil
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

-- What all mutexes share: a key that contains the owner's id. holding.lua follows.
-- KEYS: lock, counter
-- inspect   {holder | false, pttl, counter, now}
if op == 'inspect' then
  local counter = counter_at(KEYS[2])
  if type(counter) == 'table' then return counter end
  return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]), counter, now}
end
local shared = false
local function has(lock, _, owner) return redis.call('GET', KEYS[lock]) == owner end
local function prolong(lock) keep_for(KEYS[lock], ARGV[2]) end

-- The operations of an owner on its lease, which are the same for all kinds of locks. The file before
-- this one defines:
--   has(first, last, owner)      whether the owner holds the locks KEYS[first], KEYS[first + 2] …
--   prolong(first, last, owner)  lets the owner keep these locks for ARGV[2] ms
--   shared                       whether other owners may hold the lock too, and raise its counter
-- KEYS: lock, counter (one pair for each name of a lease); in extend the keys of each owner in turn
-- raise   owner fence retention                 {1, previous, now} | {0, counter, now}
-- extend  ttl retention owner...                {'10...', now}: a digit per owner, 1 = extended
-- publish owner text ms                         {1 | 0 = the owner doesn't have all, now}; '' deletes
--         KEYS: for each lock of the owner the lock, and the key that gets the text for ms
-- check   owner                                 {1 = the owner has all | 0, now}
if op == 'raise' then
  local counter, fence = 0, tonumber(ARGV[3])
  for i = 2, #KEYS, 2 do
    local value = counter_at(KEYS[i])
    if type(value) == 'table' then return value end
    counter = math.max(counter, value)
  end
  if not has(1, #KEYS, ARGV[2]) or counter > fence and not shared then return {0, counter, now} end
  for i = 2, #KEYS, 2 do keep_fence(KEYS[i], math.max(counter, fence), ARGV[4]) end
  return {1, counter, now}
elseif op == 'extend' then
  local marks, size = {}, #KEYS / (#ARGV - 3)
  for i = 1, #ARGV - 3 do
    local first, last, owner = (i - 1) * size + 1, i * size, ARGV[i + 3]
    marks[i] = has(first, last, owner) and '1' or '0'
    if marks[i] == '1' then
      prolong(first, last, owner)
      for k = first + 1, last, 2 do keep_for(KEYS[k], ARGV[3]) end
    end
  end
  return {table.concat(marks), now}
elseif op == 'publish' then
  if not has(1, #KEYS, ARGV[2]) then return {0, now} end
  for i = 2, #KEYS, 2 do
    if ARGV[3] == '' then redis.call('DEL', KEYS[i]) else redis.call('SET', KEYS[i], ARGV[3], 'PX', ARGV[4]) end
  end
  return {1, now}
elseif op == 'check' then
  return {has(1, #KEYS, ARGV[2]) and 1 or 0, now}
end
