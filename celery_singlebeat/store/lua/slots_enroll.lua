-- Remember since when each entry has its rule; refused unless the caller leads.
--
--   KEYS[1] lease    string "epoch:nonce"
--   KEYS[2] entries  hash entry -> "anchor rule"
--   KEYS[3] marks    hash entry -> high-water mark; one that is no moment, or a day ahead, is written anew
--   KEYS[4] runs     hash entry -> dispatched slots
--   ARGV[1] token    of the caller's grant
--   ARGV[2] entries  JSON [[entry, value, runs, mark], ...]
--                    runs: where the count of an entry begins that has none, or 0
--                    mark: where the marks of an entry begin that has none, or ""; one that is damaged
--                    begins at the anchor then
--
--   returns 1 written | 0 the caller does not lead
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local tomorrow = redis.call('TIME')[1] * 1000 + 86400000
for _, item in ipairs(cjson.decode(ARGV[2])) do
  local entry, value, runs, first = item[1], item[2], item[3], item[4]
  local mark = redis.call('HGET', KEYS[3], entry)
  if mark and (not string.find(mark, '^%d+$') or tonumber(mark) > tomorrow) then
    redis.call('HSET', KEYS[3], entry, first ~= '' and first or string.match(value, '^%d+'))
  elseif first ~= '' then
    redis.call('HSETNX', KEYS[3], entry, first)
  end
  redis.call('HSET', KEYS[2], entry, value)
  if runs > 0 then
    redis.call('HSETNX', KEYS[4], entry, runs)
  end
end
return 1
