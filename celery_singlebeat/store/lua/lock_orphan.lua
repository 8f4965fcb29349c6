-- Free the lock of a delivery whose process is dead. Asked by the parent that saw it die.
--
--   KEYS[1] call     hash; its field "lock" names the lock's key, which has the same hash tag
--   ARGV[1] task_id
--   ARGV[2] host     of the dead process
--   ARGV[3] pid
--
--   returns {freed, deliveries without an outcome, the lock's key, its token}
local call = redis.call('HMGET', KEYS[1], 'lock', 'deliveries')
local deliveries = tonumber(call[2]) or 0
if not call[1] then
  return {0, deliveries}
end
local lock = redis.call('HMGET', call[1], 'task_id', 'host', 'pid', 'waiting', 'token')
-- guard: owner
if lock[1] ~= ARGV[1] or lock[2] ~= ARGV[2] or lock[3] ~= ARGV[3] or lock[4] == '1' then
  return {0, deliveries}
end
-- end guard
redis.call('DEL', call[1])
return {1, deliveries, call[1], lock[5]}
