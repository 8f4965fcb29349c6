-- Pause an entry, or let it go on.
--
--   KEYS[1] paused   hash entry -> "since" while it is paused, "since until" afterwards
--   KEYS[2] running  hash entry -> "since task_id"
--   KEYS[3] changes  stream of the names that changed
--   KEYS[4] schedule hash of the dynamic entries
--   ARGV[1] events   channel
--   ARGV[2] entry
--   ARGV[3] wish     "pause" or "resume"
--   ARGV[4] dynamic  1: the entry has to be a dynamic one
--
--   returns 1 done | 0 it was so already | -1 there is no such dynamic entry
--
-- The end of a pause is kept: the slots of a pause are skipped by whoever leads when they are judged.
local t = redis.call('TIME')
local now = string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000))
-- guard: gone
if ARGV[4] == '1' and redis.call('HEXISTS', KEYS[4], ARGV[2]) == 0 then
  return -1
end
-- end guard
local known = redis.call('HGET', KEYS[1], ARGV[2])
local paused = known and not string.find(known, ' ', 1, true)
if ARGV[3] == 'pause' then
  if paused then
    return 0
  end
  redis.call('HSET', KEYS[1], ARGV[2], now)
else
  if not paused then
    return 0
  end
  redis.call('HSET', KEYS[1], ARGV[2], known .. ' ' .. now)
  redis.call('HDEL', KEYS[2], ARGV[2])
end
redis.call('XADD', KEYS[3], 'MAXLEN', '~', 10000, '*', 'entry', ARGV[2])
redis.call('PUBLISH', ARGV[1], 'changed')
return 1
