-- Claim slots and enqueue their messages, each in one step.
--
--   KEYS[1] lease     string "epoch:nonce"
--   KEYS[2] marks     hash entry -> high-water mark, milliseconds
--   KEYS[3] runs      hash entry -> dispatched slots
--   KEYS[4] counters  hash of totals
--   KEYS[5] leader    hash
--   KEYS[6] outbox    hash "milliseconds entry" -> message
--   KEYS[7] changes   stream of the names of entries that somebody changed
--   KEYS[8] running   hash entry -> "since task_id": the newest run of those that must not overlap
--   KEYS[9...]        queues
--   ARGV[1] token     of the caller's grant
--   ARGV[2] claims    JSON [[entry, slot, missed, writes, base, overlap], ...], ascending within an entry;
--                     base: the mark that the claim builds on, or -1; a lower one here means that this
--                     server has lost writes that it acknowledged, one a day ahead that something else wrote it;
--                     missed: how many slots before this one got the verdict not to run;
--                     writes: [[kind, key, payload], ...], empty for a slot that is skipped:
--                       ["push", index in KEYS, index in ARGV]
--                       ["publish", channel, index in ARGV]
--                       ["expire", index in KEYS, milliseconds]
--                       ["store", 0, index in ARGV]
--                     overlap: {} | ["skip" | "queue", task id, milliseconds after which a run is forgotten]
--   ARGV[3] cursor    id of the newest change that the caller has, or ""
--   ARGV[4...]        payloads
--
--   returns {now, outcome, ...}: 1 sent | 0 already | -2 early | -3 forgotten
--                                | -4 changed: the caller has to read the changes first
--                                | -5 overlap: the slot is skipped | -6 busy: it has to wait
--                                | "text" the queue refused it
--         | {now, -1} nothing was done: the caller does not lead
-- with: count
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local claims = cjson.decode(ARGV[2])

-- guard: token
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  count(KEYS[4], 'refused', #claims)
  return {now, -1}
end
-- end guard

local function write(kind, key, payload, field)
  if kind == 'push' then
    return redis.pcall('LPUSH', KEYS[key], ARGV[payload])
  elseif kind == 'expire' then
    return redis.pcall('PEXPIRE', KEYS[key], payload)
  elseif kind == 'publish' then
    return redis.pcall('PUBLISH', key, ARGV[payload])
  end
  return redis.pcall('HSET', KEYS[6], field, ARGV[payload])
end

-- Entries that somebody changed since the caller looked; all may have, if that place is not in the stream
-- any more. '0-0' is the place in an empty stream, whose first changes are trimmed when it is long.
local changed, all_changed = {}, false
if ARGV[3] ~= '' then
  local newest = redis.call('XREVRANGE', KEYS[7], '+', '-', 'COUNT', 1)[1]
  if newest and newest[1] ~= ARGV[3] then
    local known = #redis.call('XRANGE', KEYS[7], ARGV[3], ARGV[3]) == 1
    if ARGV[3] == '0-0' then
      known = redis.call('XLEN', KEYS[7]) < 10000
    end
    -- guard: trimmed
    all_changed = not known
    -- end guard
    for _, change in ipairs(redis.call('XRANGE', KEYS[7], '(' .. ARGV[3], '+')) do
      changed[change[2][2]] = true
    end
  end
end

-- Whether the newest run of an entry goes on, as far as is known.
local function runs(entry, forget)
  local since = tonumber(string.match(redis.call('HGET', KEYS[8], entry) or '', '^(%d+) '))
  return since and math.abs(now - since) < forget
end

local outcomes = {now}
local sent, missed, refused = 0, 0, 0
for i, claim in ipairs(claims) do
  local entry, slot = claim[1], claim[2]
  local outcome = 1
  local mark = tonumber(redis.call('HGET', KEYS[2], entry)) or -1
  -- guard: mark
  if mark >= tonumber(slot) then
    outcome = 0
  end
  -- end guard
  -- guard: base
  if mark < claim[5] or mark > now + 86400000 then
    outcome = -3
  end
  -- end guard
  -- guard: time
  if tonumber(slot) > now then
    outcome = -2
    refused = refused + 1
  end
  -- end guard
  -- guard: changed
  if all_changed or changed[entry] then
    outcome = -4
  end
  -- end guard
  local overlap = claim[6]
  -- guard: overlap
  if outcome == 1 and overlap[1] and runs(entry, overlap[3]) then
    outcome = overlap[1] == 'queue' and -6 or -5
  end
  -- end guard
  if outcome == -5 then
    redis.call('HSET', KEYS[2], entry, slot)
    missed = missed + claim[3] + 1
  end
  if outcome == 1 then
    -- The messages come before the mark: if the first of them is refused, nothing has happened yet.
    local failed = nil
    for j, step in ipairs(claim[4]) do
      local answer = write(step[1], step[2], step[3], slot .. ' ' .. entry)
      if type(answer) == 'table' and answer.err then
        failed = failed or answer.err
        if j == 1 then
          break
        end
      end
    end
    if failed then
      outcome = failed
    end
    redis.call('HSET', KEYS[2], entry, slot)
    missed = missed + claim[3]
    if #claim[4] > 0 and not failed then
      count(KEYS[3], entry, 1)
      sent = sent + 1
      if overlap[1] then
        redis.call('HSET', KEYS[8], entry, string.format('%.0f', now) .. ' ' .. overlap[2])
      end
    elseif failed then
      missed = missed + 1
    end
  end
  outcomes[i + 1] = outcome
end
redis.call('HSET', KEYS[5], 'emitted', now)
if sent > 0 then count(KEYS[4], 'dispatched', sent) end
if missed > 0 then count(KEYS[4], 'missed', missed) end
if refused > 0 then count(KEYS[4], 'refused', refused) end
return outcomes
