-- The beginning of all scripts. ARGV[1] is the operation, ARGV[2] the owner (extend has several).
-- Every reply ends with this node's clock in microseconds, so that each client can check the clock:
-- only a reading in between shows that a clock has jumped and soon jumped back.
local KEYS, ARGV, call = KEYS, ARGV, redis.call -- a local variable takes less time than a global one
local op = ARGV[1]
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- A floor this many µs ahead of our own clock comes from a client with a wrong clock: ignore it.
local FLOOR_AHEAD = 60000000

-- Our clock may be this many µs behind the floors that we believe. So a counter that has expired
-- stood further back than that (tests/model: C1 to C3), and a missing one counts as if it stood there.
local FLOOR_BEHIND = 60000000
