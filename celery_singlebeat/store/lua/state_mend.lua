-- Put aside what stands where the state of the schedule belongs, and is of another type.
--
--   KEYS[1] lease     string "epoch:nonce"
--   KEYS[2] marks     hash entry -> high-water mark
--   KEYS[3] entries   hash entry -> "anchor rule"
--   KEYS[4] schedule  hash dynamic entry -> "since rule text"
--   KEYS[5] counters  hash of totals
--   KEYS[6...]        all else
--   ARGV[1] token     of the caller's grant
--   ARGV[2...]        the type that each key has, from the second on
--
--   returns {"name:damaged:now" | "gone" | "", ...}, one for each key from the second on: where it was put
--         | -1 nothing was done: the caller does not lead
--
-- Without the marks nobody knows what was dispatched before, so all entries go on from now. Marks that are
-- not there, although slots were counted in the same step as they were written, were evicted or deleted.
-- with: put_aside
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return -1
end
local t = redis.call('TIME')
local now = string.format('%.0f', t[1] * 1000 + math.floor(t[2] / 1000))
local places = {}
for i = 2, #KEYS do
  places[i - 1] = put_aside(KEYS[i], ARGV[i], now) and KEYS[i] .. ':damaged:' .. now or ''
end
if redis.call('EXISTS', KEYS[2]) == 0 and redis.call('HGET', KEYS[5], 'dispatched') then
  places[1] = places[1] ~= '' and places[1] or 'gone'
end
if places[1] ~= '' then
  for i = 3, 4 do
    for _, entry in ipairs(redis.call('HKEYS', KEYS[i])) do
      redis.call('HSET', KEYS[2], entry, now)
    end
  end
end
return places
