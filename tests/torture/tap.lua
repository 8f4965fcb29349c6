-- Take messages from the queues, and look at the store, at one moment.
--
--   KEYS[1] batch     hash {number, at}: the newest batch that was taken
--   KEYS[2] taken     list: its messages
--   KEYS[3] lease     KEYS[4] leader    KEYS[5] entries
--   KEYS[6...]        queues
--   ARGV[1] number    of the batch that is wanted
--   ARGV[2] most      messages in a batch
--   ARGV[3] digest    of the entries that the caller knows
--
--   returns {now, number, at, lease, pid, left, digest, {entry, value, ...}, {queue index .. message, ...}}
--     left: how many messages are in the queues still
--
-- Safe to send again: a batch that was taken is given again until the next one is wanted. A number that is
-- neither the wanted one nor the one before means that the server has lost data.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local number = tonumber(redis.call('HGET', KEYS[1], 'number')) or 0
local wanted = tonumber(ARGV[1])
local at = now
local taken = {}

if number == wanted then
  taken = redis.call('LRANGE', KEYS[2], 0, -1)
  at = tonumber(redis.call('HGET', KEYS[1], 'at'))
elseif number == wanted - 1 then
  for i = 6, #KEYS do
    local room = tonumber(ARGV[2]) - #taken
    local messages = room > 0 and redis.call('RPOP', KEYS[i], room) or {}
    for _, message in ipairs(messages or {}) do
      taken[#taken + 1] = (i - 6) .. message
    end
  end
  if #taken > 0 then
    redis.call('DEL', KEYS[2])
    redis.call('RPUSH', KEYS[2], unpack(taken))
    redis.call('HSET', KEYS[1], 'number', wanted, 'at', now)
    number = wanted
  end
end

local entries = redis.call('HGETALL', KEYS[5])
local digest = redis.sha1hex(table.concat(entries, '\n'))
if digest == ARGV[3] then
  entries = {}
end
local left = 0
for i = 6, #KEYS do
  left = left + redis.call('LLEN', KEYS[i])
end
return {now, number, at, redis.call('GET', KEYS[3]) or '', redis.call('HGET', KEYS[4], 'pid') or '', left,
  digest, entries, taken}
