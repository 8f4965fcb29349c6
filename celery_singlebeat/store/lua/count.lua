-- Adding to a number in a hash, for scripts that say `with: count`.
local function count(key, field, number)
  if type(redis.pcall('HINCRBY', key, field, number)) == 'table' then
    redis.call('HSET', key, field, number) -- what stood there was no number
  end
end
