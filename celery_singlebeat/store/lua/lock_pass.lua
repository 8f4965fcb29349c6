-- Part of other scripts: end a holding. The lock is free then, or kept for the call that comes next.
--
--   lock  key of the hash
--   next  its field of this name, or false
local function pass_on(lock, next)
  if not next then
    redis.call('DEL', lock)
    return
  end
  local coming = redis.call('HMGET', lock, 'next_task', 'next_hold')
  local t = redis.call('TIME')
  redis.call('HDEL', lock, 'next', 'next_task', 'next_hold', 'stop')
  redis.call('HSET', lock, 'waiting', '2', 'token', 'waiting:' .. next, 'task_id', next,
    'task', coming[1], 'host', '', 'pid', '0',
    'since', string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000)))
  redis.call('PEXPIRE', lock, coming[2])
end
