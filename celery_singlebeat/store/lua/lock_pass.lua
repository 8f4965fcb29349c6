-- Part of other scripts: end a holding. The lock is free then, or kept for the call that comes next.
--
--   lock  key of the hash
local function pass_on(lock)
  local coming = redis.call('HMGET', lock, 'next', 'next_task', 'next_hold')
  if not coming[1] then
    redis.call('DEL', lock)
    return
  end
  local t = redis.call('TIME')
  redis.call('HDEL', lock, 'next', 'next_task', 'next_hold', 'stop')
  redis.call('HSET', lock, 'waiting', '2', 'token', 'waiting:' .. coming[1], 'task_id', coming[1],
    'task', coming[2], 'host', '', 'pid', '0',
    'since', string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000)))
  redis.call('PEXPIRE', lock, coming[3])
end
