-- Claim slots and enqueue their messages, each in one step.
--
--   KEYS[1] lease     string "epoch:nonce"
--   KEYS[2] marks     hash entry -> high-water mark, milliseconds
--   KEYS[3] runs      hash entry -> dispatched slots
--   KEYS[4] counters  hash of totals
--   KEYS[5] leader    hash
--   KEYS[6] outbox    hash "milliseconds entry" -> message
--   KEYS[7...]        queues
--   ARGV[1] token     of the caller's grant
--   ARGV[2] claims    JSON [[entry, slot, missed, writes, base], ...], ascending within an entry;
--                     base: the mark that the claim builds on, or -1; a lower one here means that this
--                     server has lost writes that it acknowledged;
--                     missed: how many slots before this one got the verdict not to run;
--                     writes: [[kind, key, payload], ...], empty for a slot that is skipped:
--                       ["push", index in KEYS, index in ARGV]
--                       ["publish", channel, index in ARGV]
--                       ["expire", index in KEYS, milliseconds]
--                       ["store", 0, index in ARGV]
--   ARGV[3...]        payloads
--
--   returns {now, outcome, ...}: 1 sent | 0 already | -2 early | -3 forgotten
--                                | "text" the queue refused it
--         | {now, -1} nothing was done: the caller does not lead
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local claims = cjson.decode(ARGV[2])

-- guard: token
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  redis.call('HINCRBY', KEYS[4], 'refused', #claims)
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
  if mark < claim[5] then
    outcome = -3
  end
  -- end guard
  -- guard: time
  if tonumber(slot) > now then
    outcome = -2
    refused = refused + 1
  end
  -- end guard
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
      redis.call('HINCRBY', KEYS[3], entry, 1)
      sent = sent + 1
    elseif failed then
      missed = missed + 1
    end
  end
  outcomes[i + 1] = outcome
end
redis.call('HSET', KEYS[5], 'emitted', now)
if sent > 0 then redis.call('HINCRBY', KEYS[4], 'dispatched', sent) end
if missed > 0 then redis.call('HINCRBY', KEYS[4], 'missed', missed) end
if refused > 0 then redis.call('HINCRBY', KEYS[4], 'refused', refused) end
return outcomes
