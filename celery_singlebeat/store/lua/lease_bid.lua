-- Take the lease if it is free, if its holder is provably gone, or if due slots stay undispatched.
--
--   KEYS[1] lease     string "epoch:nonce", expires with the lease
--   KEYS[2] epoch     counter, never expires
--   KEYS[3] leader    hash: who holds the newest epoch
--   KEYS[4] marks     hash entry -> high-water mark
--   KEYS[5] counters  hash of totals
--   KEYS[6] schedule  hash dynamic entry -> "since rule text"
--   ARGV[1] nonce     of the bidder, unguessable, one for each candidature
--   ARGV[2] ttl       milliseconds
--   ARGV[3] suspect   token that the bidder's last bid saw without presence, or ""
--   ARGV[4] grace     milliseconds that a due slot may stay undispatched
--   ARGV[5] about     JSON {node, host, pid, presence}; presence: 1 if the bidder listens
--   ARGV[6] presence  start of the presence channels
--   ARGV[7] events    channel
--   ARGV[8] overdue   JSON [[entry, slot, since], ...]: slots that the bidder believes undispatched; since: of
--                     a dynamic entry, as the bidder knows it, or ""
--   ARGV[9] silent    "token renewals" that the bidder saw unchanged for longer than a lease lasts, by its
--                     own clock, or ""; this server's clock may have been set back
--   ARGV[10] schedule hash of the bidder's
--
--   returns {"won", token, reason, now}
--         | {"held", token, absent, listeners, now, {entry, mark, ...}, renewals}
--           listeners: how many hear the events, or 0 if this server does not tell
--
-- Safe to send again: the holder's own nonce gets its own grant. Most bids find a holder that is well, and
-- every standby sends them all the time: what only a winner needs is not touched before, and a winner puts
-- aside what cannot be what it should be. The rest is for the leader to put aside.
-- with: count
-- with: put_aside
local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

local function field(key, name)
  local found = redis.pcall('HGET', key, name)
  return type(found) == 'string' and found or ''
end

local now = now_ms()
local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then
  held = false -- it is no string, and nobody's lease
end
local reason = 'free'
local seen = {}

if held then
  local nonce = string.match(held, '^%d+:(.*)$')
  if nonce == ARGV[1] then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return {'won', held, 'again', now}
  end
  reason = nil
  local leader = redis.pcall('HMGET', KEYS[3], 'token', 'presence', 'since', 'emitted', 'schedule',
    'renewals')
  local described = leader[1] == held
  local renewals = described and leader[6] or ''
  if ARGV[9] ~= '' and ARGV[9] == held .. ' ' .. renewals then
    reason = 'silent'
  end

  -- Presence: a leader that promised to listen, and whose channel nobody listens on twice in a row.
  local absent, listeners = 0, 0
  local heard = redis.pcall('PUBSUB', 'NUMSUB', ARGV[7], ARGV[6] .. (nonce or ''))
  if type(heard) == 'table' and not heard.err then
    listeners = tonumber(heard[2])
    if described and leader[2] == '1' and nonce and tonumber(heard[4]) == 0 then
      absent = 1
      if held == ARGV[3] then
        reason = 'crash'
      end
    end
  end

  -- Overdue: judged only between nodes that have the same schedule (of a dynamic entry: the present one),
  -- and not before the leader had the grace since it last emitted. A new one has ten times that until it
  -- emits first, for it has to read.
  local overdue = cjson.decode(ARGV[8])
  local since, emitted = tonumber(leader[3]) or 0, tonumber(leader[4]) or 0
  local quiet_since = math.max(since, emitted)
  local grace = tonumber(ARGV[4])
  local settled = emitted > since or now > since + 10 * grace
  for _, pair in ipairs(overdue) do
    local mark = field(KEYS[4], pair[1])
    seen[#seen + 1] = pair[1]
    seen[#seen + 1] = mark
    local slot, known = tonumber(pair[2]), false
    local version = pair[3]
    if version ~= '' then
      local record = field(KEYS[6], pair[1])
      known = string.sub(record, 1, #version + 1) == version .. ' '
    else
      known = leader[5] == ARGV[10]
    end
    if not reason and described and settled and known
        and (tonumber(mark) or 0) < slot
        and now > math.max(slot, quiet_since) + grace then
      reason = 'overdue'
    end
  end
  if not reason then
    return {'held', held, absent, listeners, now, seen, renewals}
  end
end

local about = cjson.decode(ARGV[5])
put_aside(KEYS[1], 'string', now)
put_aside(KEYS[2], 'string', now)
put_aside(KEYS[3], 'hash', now)
put_aside(KEYS[5], 'hash', now)
local epoch = redis.pcall('INCR', KEYS[2])
if type(epoch) == 'table' or epoch < now or epoch > 99999999999999 then
  epoch = now
  redis.call('SET', KEYS[2], epoch)
end
local token = epoch .. ':' .. ARGV[1]
redis.call('SET', KEYS[1], token, 'PX', ARGV[2])
redis.call('HSET', KEYS[3], 'token', token, 'epoch', epoch, 'since', now, 'emitted', now,
  'node', about.node, 'host', about.host, 'pid', about.pid, 'schedule', ARGV[10],
  'presence', about.presence, 'renewals', 0)
count(KEYS[5], 'elections', 1)
count(KEYS[5], 'elections:' .. reason, 1)
redis.call('PUBLISH', ARGV[7], 'acquired ' .. token)
return {'won', token, reason, now}
