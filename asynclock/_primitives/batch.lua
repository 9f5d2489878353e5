-- Several releases and acquires of one loop tick in one call: releases first, then acquires.
-- KEYS: the locks of all names, then what follows the counter in the keys of one name (the first key of
-- each name, the second …: queue and neighbours), then the counters of the acquires
-- batch releases ttl floor not_after retention ms owner...
--   {odd, {reply...}, now}: a reply is 1 (released) or a fence (acquired) where nobody waits, otherwise
--   what `release` or `acquire` alone would reply, or that name's error; odd is 1 if any is not a number
-- A script first does the names where nobody is in the way, with few calls, and notes the places of the
-- others in `rest`.
local replies, rest = {}, {}
local releases, names = tonumber(ARGV[2]), #ARGV - 7
local counters = #KEYS - names -- an acquire's counter has its place after this; a release uses none

-- Does the names of `rest`. `acquire` and `release` take the keys and the arguments of their operation.
local function each(acquire, release)
  if not rest[1] then return {odd, replies, now} end
  local release_args, acquire_args, keys = {op}, {unpack(ARGV, 1, 7)}, {}
  for _, i in ipairs(rest) do
    local act, args = acquire, acquire_args
    if i <= releases then act, args = release, release_args end
    args[2] = ARGV[7 + i]
    keys[1], keys[2] = KEYS[i], KEYS[counters + i]
    for k = 1, (counters + releases) / names - 1 do keys[k + 2] = KEYS[k * names + i] end
    local reply = safely(act, keys, args)
    if reply[1] == 1 and #reply[#reply - 1] == 0 then
      reply = act == release and 1 or reply[2]
    else
      odd = 1
    end
    replies[i] = reply
  end
  return {odd, replies, now}
end
