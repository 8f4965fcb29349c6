-- Take a lock away from whoever holds it. An operator's decision; the holder learns at its next renewal.
--
--   KEYS[1] lock  hash
--
--   returns the fields of the lock as it was, or an empty list
local lock = redis.call('HGETALL', KEYS[1])
redis.call('DEL', KEYS[1])
return lock
