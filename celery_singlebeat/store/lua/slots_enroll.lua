-- Remember since when each entry has its rule; refused unless the caller leads.
--
--   KEYS[1] lease    string "epoch:nonce"
--   KEYS[2] entries  hash entry -> "anchor rule"
--   KEYS[3] marks    hash entry -> high-water mark; one that is no moment, or a day ahead, goes
--   KEYS[4] runs     hash entry -> dispatched slots
--   ARGV[1] token    of the caller's grant
--   ARGV[2...]       entry, value, runs, entry, value, runs, ...
--                    runs: where the count of an entry begins that has none, or 0
--
--   returns 1 written | 0 the caller does not lead
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local tomorrow = redis.call('TIME')[1] * 1000 + 86400000
for i = 2, #ARGV, 3 do
  local mark = redis.call('HGET', KEYS[3], ARGV[i])
  if mark and (tonumber(mark) or tomorrow + 1) > tomorrow then
    redis.call('HDEL', KEYS[3], ARGV[i])
  end
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
  if ARGV[i + 2] ~= '0' then
    redis.call('HSETNX', KEYS[4], ARGV[i], ARGV[i + 2])
  end
end
return 1
