-- The mark names the process that clients last met at this address. Reasons: docs/decisions/0018.
-- KEYS: mark ("process since before")
-- ARGV: process, retention (ms)
-- Returns {1 if the mark named this process already, since (µs), the process before it, now (µs)}
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local found = redis.call('GET', KEYS[1]) or ''
local process, since, before = string.match(found, '^(%S+) (%d+) (%S+)$')
local same = process == ARGV[1]
if not same then
  since, before = string.format('%.0f', now), process or '-'
end
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. since .. ' ' .. before, 'PX', ARGV[2])
return {same and 1 or 0, tonumber(since), before, now}
