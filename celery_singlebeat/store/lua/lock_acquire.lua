-- Take a lock for one delivery of a call, unless another call holds it or this call has its outcome.
--
--   KEYS[1] lock      hash: token, task, task_id, host, pid, since, fence, waiting, backend, stop, next,
--                     next_task, next_hold; expires with the lock
--   KEYS[2] fence     counter, never expires
--   KEYS[3] call      hash: deliveries, token, lock, attempt, replays, finished, continued, buried, failed,
--                     replaced
--   KEYS[4] counters  hash of totals
--   ARGV[1] token     of the caller, unguessable, one for each delivery
--   ARGV[2] ttl       milliseconds
--   ARGV[3] task_id
--   ARGV[4] task
--   ARGV[5] host
--   ARGV[6] pid
--   ARGV[7] attempt   how often the call was retried before this delivery
--   ARGV[8] replays   how often it was replayed before
--   ARGV[9] limit     deliveries without an outcome before the call is poison
--   ARGV[10] keep     milliseconds that the record of the call outlives its last delivery
--   ARGV[11] backend  who decides about the key, or "" for this script
--   ARGV[12] ruling   what was decided elsewhere: granted | refused | "" nothing, it is decided here
--   ARGV[13] fence    the smallest fence that the grant may have
--   ARGV[14] turn     none | queue | replace: what the caller wants if the lock is held
--   ARGV[15] hold     milliseconds that the lock is kept for the caller once it is its turn
--   ARGV[16] calls    start of the keys of calls; they have the same hash tag
--
--   returns {"granted", fence, since, deliveries}
--         | {"held", remaining, waiting, task, task_id, host, pid, since, fence, follows}
--         | {"finished", continued} | {"stale"} | {"replaced"} | {"poison", deliveries}
--
-- A key that was refused elsewhere and has no holder here has no host in the answer.
--
-- `waiting` is 1 while a lock is kept for the next attempt of its call, 2 while for the call that comes next.
-- Safe to send again: the lock's own token gets its own grant, and the delivery counts once.
-- with: lock_pass
local call, lock = {}, {}
if redis.call('EXISTS', KEYS[1], KEYS[3]) > 0 then
  -- Else a free lock and a call that never ran, as nearly always.
  call = redis.call('HMGET', KEYS[3], 'token', 'finished', 'continued', 'replays', 'attempt', 'buried',
    'deliveries', 'failed', 'replaced')
  lock = redis.call('HMGET', KEYS[1], 'token', 'task_id', 'waiting', 'fence', 'since', 'next', 'next_task',
    'task', 'host', 'pid')
end
local own = ARGV[1]
local known, replays = tonumber(call[4]) or 0, tonumber(ARGV[8])

-- guard: outcome
if replays > known then
  -- A replay is a new life: what is known of the old one does not bind it.
  redis.call('DEL', KEYS[3])
  call = {}
elseif replays < known or (tonumber(call[5]) or 0) > tonumber(ARGV[7]) or call[6] then
  return {'stale'}
elseif call[2] then
  return {'finished', call[3] and 1 or 0}
elseif call[9] then
  return {'replaced'}
end
-- end guard

-- guard: settling
-- It failed just now, and whoever ran it has still to bury it: until then it counts as held.
if call[8] then
  local t = redis.call('TIME')
  local settling = tonumber(call[8]) - (t[1] * 1000 + math.floor(t[2] / 1000))
  if settling > 0 then
    return {'held', settling, 0, ARGV[4], ARGV[3], '', '', '0', '0', 0}
  end
end
-- end guard

local mine, waiting, ruling, turn = lock[1] == own, lock[3], ARGV[12], ARGV[14]
local free = not lock[1] or mine or (waiting and lock[2] == ARGV[3])
if free and ruling == 'refused' then
  return {'held', 0, 0, '', waiting and ARGV[3] or '', '', '', '0', '0', turn ~= 'none' and 1 or 0}
end
if ruling == 'granted' and not waiting then
  free = true
end

local function replaced(task_id)
  redis.call('HSET', ARGV[16] .. task_id, 'replaced', '1')
  redis.call('PEXPIRE', ARGV[16] .. task_id, ARGV[10])
end

-- The caller comes next: as the only one of its task, the first that asked or, to replace, the last. While
-- a call of another task comes next, it shall ask again later.
local follows = 0
if not free and lock[2] ~= ARGV[3] and turn ~= 'none' then
  local ahead, its_task = lock[6], lock[7]
  if waiting == '2' then
    ahead, its_task = lock[2], lock[8]
  end
  local is_mine = ahead and its_task == ARGV[4]
  if turn == 'queue' then
    follows = (not is_mine or ahead == ARGV[3]) and 1 or 0
  else
    follows = 1
    if is_mine and ahead ~= ARGV[3] then
      replaced(ahead)
    end
    if waiting ~= '2' then
      replaced(lock[2])
      redis.call('HSET', KEYS[1], 'stop', '1')
    end
    -- Nobody runs now, so that nobody has to end first.
    free = ruling ~= 'refused' and (waiting == '1' or (waiting == '2' and is_mine))
  end
  if not free and follows == 1 and (not ahead or is_mine) then
    redis.call('HSET', KEYS[1], 'next', ARGV[3], 'next_task', ARGV[4], 'next_hold', ARGV[15])
  end
end

-- guard: holder
if not free then
  if lock[2] ~= ARGV[3] then
    redis.call('HINCRBY', KEYS[4], 'lock_conflicts:' .. ARGV[4], 1)
  end
  return {'held', redis.call('PTTL', KEYS[1]), waiting and 1 or 0, lock[8] or '', lock[2] or '',
    lock[9] or '', lock[10] or '', lock[5] or '0', lock[4] or '0', follows}
end
-- end guard

local deliveries = tonumber(call[7]) or 0
if call[1] ~= own then
  -- guard: poison
  if deliveries >= tonumber(ARGV[9]) then
    if lock[1] then
      pass_on(KEYS[1], lock[6])
    end
    return {'poison', deliveries}
  end
  -- end guard
  deliveries = deliveries + 1
end
if call[8] then
  redis.call('HDEL', KEYS[3], 'failed')
end
redis.call('HSET', KEYS[3], 'deliveries', deliveries, 'token', own, 'lock', KEYS[1], 'replays', ARGV[8])
redis.call('PEXPIRE', KEYS[3], ARGV[10])

if mine then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return {'granted', lock[4], lock[5], deliveries}
end

local t = redis.call('TIME')
-- The time, so that fences grow also after the counter was lost with the data.
local fence = math.max(t[1] * 1000000 + t[2], tonumber(ARGV[13]))
local text = string.format('%.0f', fence)
local last = tonumber(redis.call('SET', KEYS[2], text, 'GET') or 0)
if last >= fence then
  text = string.format('%.0f', last + 1)
  redis.call('SET', KEYS[2], text)
end
local since = string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000))
if lock[1] then
  redis.call('HDEL', KEYS[1], 'waiting', 'stop')
  if lock[6] == ARGV[3] then
    redis.call('HDEL', KEYS[1], 'next', 'next_task', 'next_hold')
  end
end
redis.call('HSET', KEYS[1], 'token', own, 'task', ARGV[4], 'task_id', ARGV[3], 'host', ARGV[5],
  'pid', ARGV[6], 'since', since, 'fence', text)
if ARGV[11] ~= '' then
  redis.call('HSET', KEYS[1], 'backend', ARGV[11])
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {'granted', text, since, deliveries}
