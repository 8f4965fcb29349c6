-- Extend the lease, but only the exact grant that the caller holds.
--
--   KEYS[1] lease     string "epoch:nonce"
--   KEYS[2] leader    hash
--   ARGV[1] token     of the caller's grant
--   ARGV[2] ttl       milliseconds
--   ARGV[3] presence  1 if the caller listens on its presence channel
--   ARGV[4] schedule  hash of the caller's static schedule, or "" if it has not changed
--
--   returns {1, now, emitted} extended; emitted: when the newest emission was, or 0
--         | {0, now, 0} gone or taken over: the caller must step down
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
-- guard: owner
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {0, now, 0}
end
-- end guard
redis.call('PEXPIRE', KEYS[1], ARGV[2])
if redis.call('HGET', KEYS[2], 'token') == ARGV[1] then
  redis.call('HSET', KEYS[2], 'presence', ARGV[3])
  if ARGV[4] ~= '' then
    redis.call('HSET', KEYS[2], 'schedule', ARGV[4])
  end
  redis.call('HINCRBY', KEYS[2], 'renewals', 1)
end
return {1, now, tonumber(redis.call('HGET', KEYS[2], 'emitted')) or 0}
