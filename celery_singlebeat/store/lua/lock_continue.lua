-- Note that what follows a finished call (callbacks, chain, chord) was sent on.
--
--   KEYS[1] call  hash
--
--   returns 1 noted | 0 nothing is known of the call any more
if redis.call('HEXISTS', KEYS[1], 'finished') == 0 then
  return 0
end
redis.call('HSET', KEYS[1], 'continued', '1')
return 1
