-- Take the vote of one of several independent servers for a key.
--
--   KEYS[1] vote   string: the token that has it; expires with the lock
--   KEYS[2] fence  the largest fence that this server was told, never expires
--   ARGV[1] token
--   ARGV[2] ttl    milliseconds
--
--   returns {1, "", fence} the vote is the token's | {0, whose it is, fence}
--
-- Safe to send again.
local owner = redis.call('GET', KEYS[1])
local fence = redis.call('GET', KEYS[2]) or '0'
-- guard: owner
if owner and owner ~= ARGV[1] then
  return {0, owner, fence}
end
-- end guard
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {1, '', fence}
