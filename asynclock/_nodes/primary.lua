-- Since when clients have known this very process as the primary. Reasons: docs/decisions/0018.
-- KEYS: mark ("run_id since complete"; `complete`: all leases are acknowledged by all replicas)
-- ARGV: run_id, complete ('1' or '0'), retention (ms)
-- → {1 if the mark names this process, since (µs, 0: nothing can be missing), now (µs)}
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local found = redis.call('GET', KEYS[1]) or ''
local run_id, since, complete = string.match(found, '^(%x+) (%d+) ([01])$')
local same = run_id == ARGV[1]
if not same then
  since = complete == '1' and '0' or string.format('%.0f', now)
  complete = '1'
end
if ARGV[2] == '0' then complete = '0' end
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. since .. ' ' .. complete, 'PX', ARGV[3])
return {same and 1 or 0, tonumber(since), now}
