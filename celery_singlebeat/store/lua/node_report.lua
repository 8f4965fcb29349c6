-- Keep the newest report of a node, under the store's own time.
--
--   KEYS[1] nodes   hash node -> JSON report
--   ARGV[1] node
--   ARGV[2] report  JSON object with a member at least and without "seen", or "" when the node says goodbye
--   ARGV[3] keep    milliseconds after which the reports of silent nodes go, or "" to leave them alone
--
--   returns now
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
if ARGV[2] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  local report = string.format('%s, "seen": %.0f}', string.sub(ARGV[2], 1, -2), now)
  redis.call('HSET', KEYS[1], ARGV[1], report)
end
if ARGV[3] ~= '' then
  local all = redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    local readable, report = pcall(cjson.decode, all[i + 1])
    local seen = readable and type(report) == 'table' and tonumber(report.seen) or 0
    if now - seen > tonumber(ARGV[3]) then
      redis.call('HDEL', KEYS[1], all[i])
    end
  end
end
return now
