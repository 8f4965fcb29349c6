-- End one delivery of a call: free its lock, or keep it for the call's next attempt, and note the outcome.
--
--   KEYS[1] lock      hash
--   KEYS[2] call      hash
--   KEYS[3] counters  hash of totals
--   ARGV[1] token     of the caller
--   ARGV[2] outcome   success | failure | retry | other | undone (it never ran)
--                     | none (nothing is known: it counts as lost)
--   ARGV[3] hold      milliseconds that the lock is kept for the next attempt of this call; 0: freed
--   ARGV[4] dedupe    milliseconds that a success is remembered; 0: not at all
--   ARGV[5] task_id
--   ARGV[6] task
--   ARGV[7] attempt   how often the call was retried before this delivery
--   ARGV[8] replays
--   ARGV[9] keep      milliseconds that the record of a call without success is kept
--   ARGV[10] settle   milliseconds that the burial of a failed call may take: until then no copy runs
--
--   returns {1, 0, replaced} released | {0, 1, 0} this call holds it again, elsewhere
--         | {0, 0, 0} it was not the caller's
--
-- The outcome is the call's, so it is noted also when the lock was lost meanwhile.
-- with: lock_pass
local outcome = ARGV[2]
local owner = redis.call('HMGET', KEYS[1], 'token', 'task_id', 'waiting', 'stop', 'next')
local replaced = 0
local released, again = 0, 0
-- guard: owner
if owner[1] ~= ARGV[1] then
  released = -1
  again = owner[2] == ARGV[5] and not owner[3] and 1 or 0
end
-- end guard
if released == 0 then
  released = 1
  replaced = owner[1] == ARGV[1] and owner[4] and 1 or 0
  if tonumber(ARGV[3]) > 0 and outcome == 'retry' and replaced == 0 then
    redis.call('HSET', KEYS[1], 'waiting', '1', 'token', 'waiting:' .. ARGV[5])
    redis.call('PEXPIRE', KEYS[1], ARGV[3])
  elseif outcome == 'none' and replaced == 0 then
    -- The call is delivered again. That one goes first.
    redis.call('DEL', KEYS[1])
  else
    pass_on(KEYS[1], owner[5])
  end
end

local call = redis.call('HMGET', KEYS[2], 'token', 'replays', 'replaced')
if (tonumber(call[2]) or 0) <= tonumber(ARGV[8]) then
  if outcome == 'success' then
    redis.call('DEL', KEYS[2])
    if tonumber(ARGV[4]) > 0 then
      redis.call('HSET', KEYS[2], 'finished', '1', 'replays', ARGV[8])
      redis.call('PEXPIRE', KEYS[2], ARGV[4])
    end
  elseif outcome == 'undone' and call[1] == ARGV[1] then
    redis.call('HDEL', KEYS[2], 'token', 'lock')
    local left = redis.call('HINCRBY', KEYS[2], 'deliveries', -1)
    if left < 1 and ARGV[8] == '0' and redis.call('HEXISTS', KEYS[2], 'attempt') == 0 then
      redis.call('DEL', KEYS[2])
    end
  elseif outcome ~= 'none' and call[1] == ARGV[1] then
    redis.call('HDEL', KEYS[2], 'deliveries', 'token', 'lock')
    if outcome == 'other' then
      -- Whoever ignores or rejects a call may have sent another under its id: Task.replace does.
      redis.call('HDEL', KEYS[2], 'attempt')
    end
    if outcome == 'retry' then
      redis.call('HSET', KEYS[2], 'attempt', ARGV[7] + 1, 'replays', ARGV[8])
      redis.call('PEXPIRE', KEYS[2], ARGV[9] + ARGV[3])
      redis.call('HINCRBY', KEYS[3], 'retries:' .. ARGV[6], 1)
    elseif ARGV[8] == '0' and not call[3] and redis.call('HEXISTS', KEYS[2], 'attempt') == 0 then
      redis.call('DEL', KEYS[2])
    end
    if outcome == 'failure' and tonumber(ARGV[10]) > 0 then
      local t = redis.call('TIME')
      local failed = t[1] * 1000 + math.floor(t[2] / 1000) + tonumber(ARGV[10])
      local fresh = redis.call('EXISTS', KEYS[2]) == 0
      redis.call('HSET', KEYS[2], 'failed', string.format('%.0f', failed))
      if fresh then
        redis.call('PEXPIRE', KEYS[2], ARGV[10])
      end
    end
  end
end
return {released == 1 and 1 or 0, again, replaced}
