-- Replaces a mark, unless it changed since a client read it. Reasons: docs/decisions/0029.
-- KEYS: mark
-- ARGV: the mark that was read, the new one, retention (ms)
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
