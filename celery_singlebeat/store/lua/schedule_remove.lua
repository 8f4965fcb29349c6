-- Remove a dynamic entry. Its high-water mark stays, so that no slot comes again if it is added again.
--
--   KEYS[1] schedule  hash entry -> "since rule text"
--   KEYS[2] paused    hash entry -> "since" or "since until"
--   KEYS[3] running   hash entry -> "since task_id"
--   KEYS[4] changes   stream of the names that changed
--   ARGV[1] events    channel
--   ARGV[2] entry
--   ARGV[3] 1: its pause stays, since another entry has the same name
--
--   returns 1 removed | 0 there is none
if redis.call('HDEL', KEYS[1], ARGV[2]) == 0 then
  return 0
end
-- guard: pause
if ARGV[3] ~= '1' then
  redis.call('HDEL', KEYS[2], ARGV[2])
end
-- end guard
redis.call('HDEL', KEYS[3], ARGV[2])
redis.call('XADD', KEYS[4], 'MAXLEN', '~', 10000, '*', 'entry', ARGV[2])
redis.call('PUBLISH', ARGV[1], 'changed')
return 1
