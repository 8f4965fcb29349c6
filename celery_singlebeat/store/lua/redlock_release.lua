-- Give back the vote of one of several independent servers.
--
--   KEYS[1] vote   string: the token that has it
--   ARGV[1] token
--
--   returns 1 given back | 0 it was not the token's
-- guard: owner
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
-- end guard
return redis.call('DEL', KEYS[1])
