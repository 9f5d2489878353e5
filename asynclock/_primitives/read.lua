-- A reader: any number of readers may hold a name together while there is no writer.
-- KEYS: readers (owner -> expiry in ms), counter; in acquire also: lock (the writer's), intent
-- acquire owner ttl floor not_after retention   {1, fence, now} | {0, pttl, holder, now} | {-1, now}
--         with a ticket: puts a present reader's entry back, so the intent to write doesn't refuse
--         with an owner: its write lock doesn't refuse, nor does the intent (a downgrade)
-- raise   owner fence retention                 {1, previous, now} | {0, counter, now}
-- extend  ttl retention owner...                {'10...', now}: a digit per pair, 1 = extended
-- release owner                                 {1 | 0, now}
-- check   owner                                 {1 = the owner reads | 0, now}
-- inspect                                       {{owner, expiry, ...}, counter, now}
local ms = math.floor(now / 1000)

local function reads(key, owner)
  local expiry = redis.call('ZSCORE', key, owner)
  return expiry and tonumber(expiry) > ms
end

local function keep_reader(key, owner, ttl)
  redis.call('ZADD', key, ms + ttl, owner)
  if redis.call('PTTL', key) < ttl then redis.call('PEXPIRE', key, ttl) end
end

if op == 'acquire' then
  if too_late() then return {-1, now} end
  for i = 3, ARGV[7] and 3 or 4 do
    local writer = redis.call('GET', KEYS[i])
    if writer and writer ~= ARGV[7] then return {0, redis.call('PTTL', KEYS[i]), writer, now} end
  end
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ms)
  keep_reader(KEYS[1], ARGV[2], tonumber(ARGV[3]))
  return {1, next_fence(KEYS[2], ARGV[4], ARGV[6]), now}
elseif op == 'raise' then
  -- If other readers have raised the counter past our fence, take the raise all the same: no writer
  -- got in while we read here, so no writer has a fence above ours (docs/decisions/0015).
  local counter, fence = tonumber(redis.call('GET', KEYS[2])) or 0, tonumber(ARGV[3])
  if not reads(KEYS[1], ARGV[2]) then return {0, counter, now} end
  keep_fence(KEYS[2], math.max(counter, fence), ARGV[4])
  return {1, counter, now}
elseif op == 'extend' then
  local marks = {}
  for i = 1, #ARGV - 3 do
    if reads(KEYS[2 * i - 1], ARGV[i + 3]) then
      keep_reader(KEYS[2 * i - 1], ARGV[i + 3], tonumber(ARGV[2]))
      keep_counter(KEYS[2 * i], ARGV[3])
      marks[i] = '1'
    else
      marks[i] = '0'
    end
  end
  return {table.concat(marks), now}
elseif op == 'release' then
  local alive = reads(KEYS[1], ARGV[2])
  redis.call('ZREM', KEYS[1], ARGV[2])
  return {alive and 1 or 0, now}
elseif op == 'check' then
  return {reads(KEYS[1], ARGV[2]) and 1 or 0, now}
else
  return {redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. ms, '+inf', 'WITHSCORES'),
    tonumber(redis.call('GET', KEYS[2])) or 0, now}
end
