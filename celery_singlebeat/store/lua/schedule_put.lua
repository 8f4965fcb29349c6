-- Add dynamic entries, or change those that are there.
--
--   KEYS[1] schedule  hash entry -> "since rule text"
--   KEYS[2] changes   stream of the names that changed
--   ARGV[1] events    channel
--   ARGV[2...]        entry, rule, text, entry, rule, text, ...
--
--   returns {"added" | "changed" | "same", ...}, one for each entry
--
-- `since` is when the entry got its rule. A change of anything else leaves it, so that no slot moves.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local outcomes, news = {}, false
for i = 2, #ARGV, 3 do
  local entry, rule, text = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local known = redis.call('HGET', KEYS[1], entry)
  local since, old_rule, old_text = string.match(known or '', '^(%d+) (%S+) (.*)$')
  if old_rule == rule and old_text == text then
    outcomes[#outcomes + 1] = 'same'
  else
    if old_rule ~= rule then
      since = string.format('%.0f', now)
    end
    redis.call('HSET', KEYS[1], entry, since .. ' ' .. rule .. ' ' .. text)
    redis.call('XADD', KEYS[2], 'MAXLEN', '~', 10000, '*', 'entry', entry)
    outcomes[#outcomes + 1] = known and 'changed' or 'added'
    news = true
  end
end
if news then
  redis.call('PUBLISH', ARGV[1], 'changed')
end
return outcomes
