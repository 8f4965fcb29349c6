-- Remember since when each entry has its rule; refused unless the caller leads.
--
--   KEYS[1] lease    string "epoch:nonce"
--   KEYS[2] entries  hash entry -> "anchor rule"
--   KEYS[3] marks    hash entry -> high-water mark; one that is no moment, or a day ahead, goes
--   ARGV[1] token    of the caller's grant
--   ARGV[2...]       entry, value, entry, value, ...
--
--   returns 1 written | 0 the caller does not lead
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local tomorrow = redis.call('TIME')[1] * 1000 + 86400000
for i = 2, #ARGV, 2 do
  local mark = redis.call('HGET', KEYS[3], ARGV[i])
  if mark and (tonumber(mark) or tomorrow + 1) > tomorrow then
    redis.call('HDEL', KEYS[3], ARGV[i])
  end
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
end
return 1
