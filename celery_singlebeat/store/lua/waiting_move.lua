-- Pass on the messages that are due: into their queues in this step, or to the caller, who publishes them.
--
--   KEYS[1] waiting   sorted set: record -> when it is due, in milliseconds
--   KEYS[2] mover     string: a beat moves; expires
--   ARGV[1] rank      beat | worker
--   ARGV[2] most      records that are looked at
--   ARGV[3] counts    milliseconds for which the word of a beat counts
--   ARGV[4] claim     milliseconds that a caller has to publish what it got
--   ARGV[5] put_off   milliseconds that a record waits whose queue does not take it
--
-- A record is a letter, a name, a zero byte and the message: L names a list, C a channel. R has no name: it is
-- published by the caller. The keys of lists stand in the records, as the broker has them.
--
--   returns {moved, refused, milliseconds until the next is due (-1: nothing waits), records to publish}
--         | {-1, 0, milliseconds, {}} a beat moves: the caller rests
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
if ARGV[1] == 'beat' then
  redis.call('SET', KEYS[2], '1', 'PX', ARGV[3])
else
  -- guard: rank
  local left = redis.call('PTTL', KEYS[2])
  if left > 0 then
    return {-1, 0, left, {}}
  end
  -- end guard
end
local moved, refused, taken = 0, 0, {}
-- guard: due
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now), 'LIMIT', 0, ARGV[2])
-- end guard
for _, record in ipairs(due) do
  local kind = string.sub(record, 1, 1)
  local zero = string.find(record, '\0', 1, true)
  if kind == 'R' then
    redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[4]), record)
    taken[#taken + 1] = record
  else
    local name, message = string.sub(record, 2, zero - 1), string.sub(record, zero + 1)
    local answer = redis.pcall(kind == 'L' and 'LPUSH' or 'PUBLISH', name, message)
    if type(answer) == 'table' and answer.err then
      redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[5]), record)
      refused = refused + 1
    else
      redis.call('ZREM', KEYS[1], record)
      moved = moved + 1
    end
  end
end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local rest = first[2] and math.max(0, tonumber(first[2]) - now) or -1
return {moved, refused, rest, taken}
