-- Remember since when each entry has its rule; refused unless the caller leads.
--
--   KEYS[1] lease    string "epoch:nonce"
--   KEYS[2] entries  hash entry -> "anchor rule"
--   ARGV[1] token    of the caller's grant
--   ARGV[2...]       entry, value, entry, value, ...
--
--   returns 1 written | 0 the caller does not lead
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
for i = 2, #ARGV, 2 do
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
end
return 1
