-- Put a failed call into the dead-letter queue and acknowledge its message, in one step.
--
--   KEYS[1] letters   list of messages, newest first: the dead-letter queue of a kombu Redis broker
--   KEYS[2] call      hash
--   KEYS[3] counters  hash of totals
--   KEYS[4] unacked   hash delivery tag -> message that a kombu consumer has in hand
--   KEYS[5] index     sorted set of the same tags
--   ARGV[1] letter    message
--   ARGV[2] replays   how often the call was replayed before
--   ARGV[3] attempt   how often it was retried before this delivery
--   ARGV[4] tag       delivery tag of the failed message, or ""
--   ARGV[5] limit     how many letters are kept
--   ARGV[6] keep      milliseconds that the record of the call is kept
--   ARGV[7] counter   field of the counters
--   ARGV[8] moves     1: the message is a letter already, and only changes its queue
--
--   returns 1 buried | 0 it has a letter already, was replaced, or a later attempt or replay exists
--
-- Safe to send again. Either way the message is acknowledged: its call is not its own concern any more.
local call = redis.call('HMGET', KEYS[2], 'replays', 'buried', 'attempt', 'replaced')
local known, replays = tonumber(call[1]) or 0, tonumber(ARGV[2])
local buried, moves = 1, ARGV[8] == '1'
-- guard: letter
local over = call[2] or call[4] or (tonumber(call[3]) or 0) > tonumber(ARGV[3])
if not moves and (known > replays or (known == replays and over)) then
  buried = 0
end
-- end guard
if buried == 1 then
  -- The letter comes first: if the queue refuses it (wrong type, no memory), nothing has happened yet.
  local length = redis.call('LPUSH', KEYS[1], ARGV[1])
  if not moves then
    -- "lock" stays: the parent of a killed child may still have to free it.
    redis.call('HDEL', KEYS[2], 'deliveries', 'token', 'attempt', 'finished', 'continued', 'failed')
    redis.call('HSET', KEYS[2], 'buried', '1', 'replays', ARGV[2])
    redis.call('PEXPIRE', KEYS[2], ARGV[6])
    redis.call('HINCRBY', KEYS[3], ARGV[7], 1)
  end
  local limit = tonumber(ARGV[5])
  if length > limit then
    redis.call('HINCRBY', KEYS[3], 'dead_letters_trimmed', length - limit)
    if limit > 0 then
      redis.call('LTRIM', KEYS[1], 0, limit - 1)
    else
      redis.call('DEL', KEYS[1])
    end
  end
end
if ARGV[4] ~= '' then
  redis.call('ZREM', KEYS[5], ARGV[4])
  redis.call('HDEL', KEYS[4], ARGV[4])
end
return buried
