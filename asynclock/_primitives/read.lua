-- A reader: any number of readers may hold a name together while there is no writer. Readers and
-- writers share a queue (phases.lua).
-- KEYS: readers (owner -> expiry in ms), counter; in acquire, release and leave also: queue, lock
-- acquire owner ttl floor not_after retention [ms ticket number [barge [writer]]]
--         granted if there is no writer, and no writer's ticket waits or ours was told to go first
--         or barge is 1 (a lease that is put back)
--         with a writer: its downgrade, for which neither it nor any ticket is in the way
--         if refused, the ticket waits for ms (0: it leaves no ticket)
--   {1, fence, '', now} | {-1, now} | {0, left, holder, number, 0, free, {ticket...}, now}
--         left, holder: of the writer, or of the ticket that goes first; free 1: that was woken
--         number: 1, the order of readers does not matter (0: our ticket doesn't wait here)
--         at the end: the tickets that were woken
-- release owner [keep [ticket ms number]]       {1 | 0, {ticket...}, now}: who was woken
--         with a ticket: the attempt failed, but its ticket goes on waiting
-- leave   ticket                                {1, {ticket...}, now}: the ticket waits no more
-- inspect                                       {{owner, expiry, ...}, counter, now}
local ms = math.floor(now / 1000)

local function reads(key, owner)
  local expiry = redis.call('ZSCORE', key, owner)
  return expiry and tonumber(expiry) > ms
end

-- Returns how long the key would have lived, -2 without readers.
local function keep_reader(key, owner, ttl)
  local left = redis.call('PTTL', key)
  redis.call('ZADD', key, 'GT', ms + ttl, owner)
  if left < ttl then redis.call('PEXPIRE', key, ttl) end
  return left
end

local function wait(queue, ticket, patience)
  local place = tonumber(redis.call('ZSCORE', queue, ticket)) or LATER + ms
  join(queue, ticket, patience, place)
end

local function acquire(KEYS, ARGV)
  if too_late() then return {-1, now} end
  local queue, lock = KEYS[3], KEYS[4]
  local head, failure = first(queue)
  if failure and not head then return failure end
  local ticket, patience = ARGV[8] or ARGV[2], tonumber(ARGV[7] or 0)
  local barge, exempt = ARGV[10] == '1', ARGV[11]
  local writer, left = not nobody and redis.call('GET', lock)
  local holder = writer ~= exempt and writer
  if holder then
    left = redis.call('PTTL', lock)
  elseif head and not barge and not exempt
    and tonumber(redis.call('ZSCORE', queue, ticket)) ~= READY then
    holder = waiting_writer(queue)
    left = holder and redis.call('PTTL', derived(queue, holder))
  end
  if not holder then
    if head then leave(queue, ticket) end
    if keep_reader(KEYS[1], ARGV[2], tonumber(ARGV[3])) ~= -2 then
      redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ms)
    end
    return granted(next_fence(KEYS[2]), '')
  end
  if patience > 0 then wait(queue, ticket, patience) end
  local woken = wake_next(lock, queue, KEYS[1])
  local free = woken[1] == holder and 1 or 0
  return {0, left, holder, patience > 0 and 1 or 0, 0, free, woken, now}
end

local function release(KEYS, ARGV)
  local queue = KEYS[3]
  local alive = reads(KEYS[1], ARGV[2])
  redis.call('ZREM', KEYS[1], ARGV[2])
  local head, failure = first(queue)
  if failure and not head then return failure end
  if not alive then return {0, {}, now} end
  if not head and not ARGV[4] then return {1, {}, now} end
  if ARGV[4] then wait(queue, ARGV[4], ARGV[5]) end
  return {1, wake_next(KEYS[4], queue, KEYS[1]), now}
end

-- Does a batch where nobody is in the way; leaves the rest to `acquire` and `release`.
local function batch()
  nobody = none_aside()
  for i = 1, releases do
    local expiry = nobody and try('ZSCORE', KEYS[i], ARGV[7 + i])
    if type(expiry) == 'string' and tonumber(expiry) > ms then
      call('ZREM', KEYS[i], ARGV[7 + i])
      replies[i] = 1
    else
      rest[#rest + 1] = i
    end
  end
  -- If none of these names has readers, nothing else need be read; otherwise `acquire` does them all.
  local free = nobody and releases < names and not too_late()
    and try('EXISTS', unpack(KEYS, releases + 1, names)) == 0
  for i = releases + 1, names do
    if free and type(try('ZADD', KEYS[i], ms + ARGV[3], ARGV[7 + i])) == 'number' then
      call('PEXPIRE', KEYS[i], ARGV[3])
      replies[i] = next_fence(KEYS[counters + i])
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
  leave(KEYS[3], ARGV[2])
  return {1, wake_next(KEYS[4], KEYS[3], KEYS[1]), now}
elseif op == 'inspect' then
  local counter = counter_at(KEYS[2])
  if type(counter) == 'table' then return counter end
  return {redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. ms, '+inf', 'WITHSCORES'), counter, now}
end
-- If other readers have raised the counter above our fence, holding.lua accepts the raise all the
-- same: no writer got in while we read here, so no writer's fence is above ours (docs/decisions/0015).
local shared = true
local function has(readers, _, owner) return reads(KEYS[readers], owner) end
local function prolong(readers, _, owner) keep_reader(KEYS[readers], owner, tonumber(ARGV[2])) end
