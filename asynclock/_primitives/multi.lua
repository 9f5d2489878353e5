-- Several mutexes as one: all or none, with one fence for all. The keys are those of each mutex.
-- queue.lua goes before this: a release wakes the first waiter of each name. This itself doesn't
-- queue: it takes the names when all are free, even if others wait for one of them.
-- KEYS: lock, counter for each name; in extend one such group per owner
-- acquire owner ttl floor not_after retention   {1, fence, now} | {0, pttl, holder, now} | {-1, now}
-- raise   owner fence retention                 {1, previous, now} | {0, counter, now}
-- extend  ttl retention owner...                {'10...', now}: a digit per group, 1 = all extended
-- release owner                                 {1 | 0, woken, now}: 1 = the owner had all;
--                                               woken: the keys of the tickets that were woken
-- check   owner                                 {1 | 0, now}: 1 = the owner has all
local function holders(first, last)
  local locks = {}
  for i = first, last, 2 do locks[#locks + 1] = KEYS[i] end
  return redis.call('MGET', unpack(locks))
end

local function all_ours(first, last, owner)
  for _, holder in ipairs(holders(first, last)) do
    if holder ~= owner then return false end
  end
  return true
end

local function highest_counter()
  local highest = 0
  for i = 2, #KEYS, 2 do
    local counter = counter_at(KEYS[i])
    if type(counter) == 'table' then return counter end
    highest = math.max(highest, counter)
  end
  return highest
end

if op == 'acquire' then
  if too_late() then return {-1, now} end
  local owner, blocker, longest = ARGV[2], nil, -1
  local before = holders(1, #KEYS)
  for i, holder in ipairs(before) do
    if holder and holder ~= owner then
      local left = redis.call('PTTL', KEYS[2 * i - 1])
      if not blocker or left > longest then blocker, longest = holder, left end
    end
  end
  if blocker then return {0, longest, blocker, now} end
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
  return {1, fence, now}
elseif op == 'raise' then
  local counter, fence = highest_counter(), tonumber(ARGV[3])
  if type(counter) == 'table' then return counter end
  if not all_ours(1, #KEYS, ARGV[2]) or counter > fence then return {0, counter, now} end
  for i = 2, #KEYS, 2 do keep_fence(KEYS[i], fence, ARGV[4]) end
  return {1, counter, now}
elseif op == 'extend' then
  local marks, size = {}, #KEYS / (#ARGV - 3)
  for group = 1, #ARGV - 3 do
    local first, last = (group - 1) * size + 1, group * size
    local ours = all_ours(first, last, ARGV[group + 3])
    for i = first, ours and last or 0, 2 do
      redis.call('PEXPIRE', KEYS[i], ARGV[2])
      keep_counter(KEYS[i + 1], ARGV[3])
    end
    marks[group] = ours and '1' or '0'
  end
  return {table.concat(marks), now}
elseif op == 'check' then
  return {all_ours(1, #KEYS, ARGV[2]) and 1 or 0, now}
else -- release: delete the keys that the owner still has, even if others have expired
  local locks, ours = {}, {}
  for i = 1, #KEYS, 2 do locks[#locks + 1] = KEYS[i] end
  for i, holder in ipairs(redis.call('MGET', unpack(locks))) do
    if holder == ARGV[2] then ours[#ours + 1] = locks[i] end
  end
  if #ours > 0 then redis.call('DEL', unpack(ours)) end
  local woken, failure = {}, nil
  for _, lock in ipairs(ours) do
    local queue = derived(lock, 'queue')
    local wrong = mistyped(queue)
    local ticket = wrong and '' or wake(queue)
    if ticket ~= '' then woken[#woken + 1] = derived(queue, ticket) end
    failure = failure or wrong
  end
  return failure or {#ours == #locks and 1 or 0, woken, now}
end
