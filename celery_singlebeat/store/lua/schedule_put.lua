-- Add dynamic entries, or change those that are there.
--
--   KEYS[1] schedule  hash entry -> "since rule text"
--   KEYS[2] changes   stream of the names that changed
--   ARGV[1] events    channel
--   ARGV[2...]        entry, rule, text, since, entry, rule, text, since, ...
--                     since: from when its slots count, in milliseconds; "": from now
--
--   returns {"added" | "changed" | "same", ...}, one for each entry
--
-- An entry's `since` is when it got its rule. A change of anything else leaves it, so that no slot moves; only
-- a later one that is given replaces it. One that lies far in the future is damaged, and begins anew.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local outcomes, news = {}, false
for i = 2, #ARGV, 4 do
  local entry, rule, text, asked = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3])
  local known = redis.call('HGET', KEYS[1], entry)
  local old_since, old_rule = string.match(known or '', '^(%d+) (%S+) ')
  local since = asked or now
  if old_rule == rule and tonumber(old_since) < now + 86400000 then
    since = math.max(tonumber(old_since), asked or 0)
  end
  local record = string.format('%.0f', since) .. ' ' .. rule .. ' ' .. text
  if known == record then
    outcomes[#outcomes + 1] = 'same'
  else
    redis.call('HSET', KEYS[1], entry, record)
    redis.call('XADD', KEYS[2], 'MAXLEN', '~', 10000, '*', 'entry', entry)
    outcomes[#outcomes + 1] = known and 'changed' or 'added'
    news = true
  end
end
if news then
  redis.call('PUBLISH', ARGV[1], 'changed')
end
return outcomes
