-- Note which entries have gone from the schedule, and forget those that went long ago.
--
--   KEYS[1] lease     string "epoch:nonce"
--   KEYS[2] gone      hash entry -> since when no leader has it, in milliseconds
--   KEYS[3] schedule  hash dynamic entry -> "since rule text"
--   KEYS[4] marks     hash entry -> high-water mark
--   KEYS[5...]        hashes of what else is kept of an entry
--   ARGV[1] token     of the caller's grant
--   ARGV[2] keep      milliseconds for which an entry that has gone is remembered
--   ARGV[3] gone      JSON [entry, ...]
--   ARGV[4] back      JSON [entry, ...]
--   ARGV[5] over      JSON [entry, ...]; one that has come back, or went later than that, stays
--
--   returns 1 done | 0 the caller does not lead
--
-- The last of the marks stays: where slots were counted and no mark is, marks were lost (state_mend).
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
for _, entry in ipairs(cjson.decode(ARGV[3])) do
  redis.call('HSETNX', KEYS[2], entry, string.format('%.0f', now))
end
for _, entry in ipairs(cjson.decode(ARGV[4])) do
  redis.call('HDEL', KEYS[2], entry)
end
local function is_last_mark(entry)
  return redis.call('HLEN', KEYS[4]) == 1 and redis.call('HEXISTS', KEYS[4], entry) == 1
end

for _, entry in ipairs(cjson.decode(ARGV[5])) do
  local since = tonumber(redis.call('HGET', KEYS[2], entry))
  if since and now - since > tonumber(ARGV[2]) and redis.call('HEXISTS', KEYS[3], entry) == 0
      and not is_last_mark(entry) then
    redis.call('HDEL', KEYS[2], entry)
    for i = 4, #KEYS do
      redis.call('HDEL', KEYS[i], entry)
    end
  end
end
return 1
