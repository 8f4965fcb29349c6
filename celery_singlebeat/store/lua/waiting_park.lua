-- Keep messages until they are due.
--
--   KEYS[1] waiting  sorted set: record -> when it is due, in milliseconds
--   ARGV[1] wait     milliseconds from now
--   ARGV[2...]       records
--
--   returns how many were added; a record that waits already keeps its moment
local t = redis.call('TIME')
local due = t[1] * 1000 + math.floor(t[2] / 1000) + tonumber(ARGV[1])
local added = 0
for i = 2, #ARGV do
  added = added + redis.call('ZADD', KEYS[1], 'NX', string.format('%.0f', due), ARGV[i])
end
return added
