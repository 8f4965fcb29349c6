-- Move a dead letter back into a queue as a message, in one step.
--
--   KEYS[1] letters  list of messages
--   KEYS[2] queue    list of messages
--   ARGV[1] letter   exactly as it stands in the list
--   ARGV[2] message  to send instead
--
--   returns 1 sent | 0 the letter is gone: somebody else replayed or purged it
-- guard: letter
if redis.call('LREM', KEYS[1], 1, ARGV[1]) == 0 then
  return 0
end
-- end guard
redis.call('LPUSH', KEYS[2], ARGV[2])
return 1
