-- Putting a key aside that is of another type than it should be, for scripts that say `with: put_aside`.
local function put_aside(key, kind, now)
  local found = redis.pcall('TYPE', key).ok
  if not found or found == 'none' or found == kind then
    return false
  end
  redis.call('RENAME', key, key .. ':damaged:' .. string.format('%.0f', now))
  return true
end
