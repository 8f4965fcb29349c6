-- Do what the other scripts do, and leave nothing: write, publish, count subscribers.
--
--   KEYS[1] probe    string, written and deleted here
--   ARGV[1] channel  of presence; the caller listens on it
--
--   returns how many listen on the channel | "text" why they cannot be counted
redis.call('SET', KEYS[1], '1', 'PX', 1000)
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', ARGV[1], 'probe')
local count = redis.pcall('PUBSUB', 'NUMSUB', ARGV[1])
if type(count) ~= 'table' then
  return 'no answer'
end
return count.err or tonumber(count[2])
