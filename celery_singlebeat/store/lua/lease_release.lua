-- Free the lease, but only the exact grant that the caller holds, and wake the standbys.
--
--   KEYS[1] lease   string "epoch:nonce"
--   ARGV[1] token   of the caller's grant
--   ARGV[2] events  channel
--
--   returns 1 freed | 0 it was not the caller's to free
-- guard: owner
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
-- end guard
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', ARGV[2], 'released ' .. ARGV[1])
return 1
