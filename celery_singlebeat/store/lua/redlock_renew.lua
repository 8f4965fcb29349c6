-- Extend the vote of one of several independent servers, and tell it the fence of the lock.
--
--   KEYS[1] vote   string: the token that has it
--   KEYS[2] fence  the largest fence that this server was told
--   ARGV[1] token
--   ARGV[2] ttl    milliseconds
--   ARGV[3] fence
--
--   returns 1 extended | 0 it is another's | -1 it is nobody's
local owner = redis.call('GET', KEYS[1])
-- guard: owner
if owner ~= ARGV[1] then
  return owner and 0 or -1
end
-- end guard
redis.call('PEXPIRE', KEYS[1], ARGV[2])
if tonumber(ARGV[3]) > tonumber(redis.call('GET', KEYS[2]) or '0') then
  redis.call('SET', KEYS[2], ARGV[3])
end
return 1
