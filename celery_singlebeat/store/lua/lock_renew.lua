-- Extend a lock, but only the exact one that the caller holds.
--
--   KEYS[1] lock   hash
--   KEYS[2] call   hash of the call that holds it
--   ARGV[1] token  of the caller
--   ARGV[2] ttl    milliseconds
--   ARGV[3] keep   milliseconds that the record of the call lives on
--
--   returns 1 extended | 2 extended, and its holder has to end | 0 gone or taken over
-- guard: owner
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then
  return 0
end
-- end guard
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return redis.call('HEXISTS', KEYS[1], 'stop') + 1
