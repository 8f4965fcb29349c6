-- Read what changed in the dynamic schedule since a place in the stream of changes.
--
--   KEYS[1] schedule  hash entry -> "since rule text"
--   KEYS[2] paused    hash entry -> "since" or "since until"
--   KEYS[3] changes   stream of the names that changed
--   ARGV[1] cursor    id of the newest change that the caller has, or ""
--
--   returns {cursor, everything, {entry, value, ...}, {entry, pause, ...}}
--     everything: 1 if the answer holds all entries and pauses, because the caller's place is not known
--     here (any more: the stream is trimmed, and a server may lose its newest writes); 0 if it holds those
--     that changed, with "" for what is gone.
local newest = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)[1]
local cursor = newest and newest[1] or '0-0'
if ARGV[1] == cursor then
  return {cursor, 0, {}, {}}
end
local known = ARGV[1] ~= '' and ARGV[1] ~= '0-0'
  and #redis.call('XRANGE', KEYS[3], ARGV[1], ARGV[1]) == 1
if not known then
  return {cursor, 1, redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[2])}
end
local entries, pauses, seen = {}, {}, {}
for _, change in ipairs(redis.call('XRANGE', KEYS[3], '(' .. ARGV[1], '+')) do
  local entry = change[2][2]
  if not seen[entry] then
    seen[entry] = true
    entries[#entries + 1] = entry
    entries[#entries + 1] = redis.call('HGET', KEYS[1], entry) or ''
    pauses[#pauses + 1] = entry
    pauses[#pauses + 1] = redis.call('HGET', KEYS[2], entry) or ''
  end
end
return {cursor, 0, entries, pauses}
