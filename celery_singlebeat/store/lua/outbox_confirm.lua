-- Forget outbox records whose messages the broker has confirmed.
--
--   KEYS[1] outbox  hash field -> message
--   ARGV            field, message, field, message, ...: only an unchanged record goes
--
--   returns how many went
local gone = 0
for i = 1, #ARGV, 2 do
  if redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then
    gone = gone + redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
return gone
