-- Giving several mutexes back; before all else, as release.lua.
-- KEYS: lock, counter for each name
-- release owner   {1 | 0}: 1 = all were ours; those that are ours are free, even if others expired
if ARGV[1] == 'release' then
  local locks, ours = {}, {}
  for i = 1, #KEYS, 2 do locks[#locks + 1] = KEYS[i] end
  for i, holder in ipairs(redis.call('MGET', unpack(locks))) do
    if holder == ARGV[2] then ours[#ours + 1] = locks[i] end
  end
  if #ours > 0 then redis.call('DEL', unpack(ours)) end
  return {#ours == #locks and 1 or 0}
end
