-- Note that the call of an entry which must not overlap itself has ended.
--
--   KEYS[1] running  hash entry -> "since task_id"
--   ARGV[1] entry
--   ARGV[2] task_id  of the call that has ended
--
--   returns 1 | 0 another call is the entry's newest
local running = redis.call('HGET', KEYS[1], ARGV[1])
if running and string.match(running, '^%d+ (.*)$') == ARGV[2] then
  return redis.call('HDEL', KEYS[1], ARGV[1])
end
return 0
