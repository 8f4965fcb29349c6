-- Take a lock away from whoever holds it. An operator's decision; the holder learns at its next renewal.
--
--   KEYS[1] lock      hash
--   KEYS[2] counters  hash of totals
--
--   returns the fields of the lock as it was, or an empty list
local lock = redis.call('HGETALL', KEYS[1])
local task = redis.call('HGET', KEYS[1], 'task')
if redis.call('DEL', KEYS[1]) == 1 then
  redis.call('HINCRBY', KEYS[2], 'locks_broken:' .. (task or ''), 1)
end
return lock
