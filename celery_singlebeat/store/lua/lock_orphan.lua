-- Free the lock of a delivery whose process is dead. Asked by the parent that saw it die.
--
--   KEYS[1] call     hash; its field "lock" names the lock's key, which has the same hash tag
--   ARGV[1] task_id
--   ARGV[2] host     of the dead process
--   ARGV[3] pid
--
--   returns {freed, deliveries without an outcome, the lock's key, its token}
-- with: lock_pass
local call = redis.call('HMGET', KEYS[1], 'lock', 'deliveries')
local deliveries = tonumber(call[2]) or 0
if not call[1] then
  return {0, deliveries}
end
local lock = redis.call('HMGET', call[1], 'task_id', 'host', 'pid', 'waiting', 'token', 'stop', 'next')
-- guard: owner
if lock[1] ~= ARGV[1] or lock[2] ~= ARGV[2] or lock[3] ~= ARGV[3] or lock[4] then
  return {0, deliveries}
end
-- end guard
-- Its call is delivered again. That one goes first, unless it was to be replaced.
if lock[6] then
  pass_on(call[1], lock[7])
else
  redis.call('DEL', call[1])
end
return {1, deliveries, call[1], lock[5]}
