-- Take dead letters out, and put a message into a queue for each that has one: each in one step.
--
--   KEYS[1] letters         list of messages, newest first
--   KEYS[2...] queue        list of messages, one for each letter
--   ARGV[1] far             how far from the old end a letter is looked for
--   ARGV[2, 4 ...] letter   exactly as it stands in the list
--   ARGV[3, 5 ...] message  to send instead, or "": the letter is dropped
--
--   returns for each letter 1 done | 0 it is gone: somebody else replayed or dropped it
local answers = {}
for i = 1, #KEYS - 1 do
  local letter, message = ARGV[2 * i], ARGV[2 * i + 1]
  local there = 1
  -- guard: letter
  if not redis.call('LPOS', KEYS[1], letter, 'RANK', -1, 'MAXLEN', ARGV[1]) then
    there = 0
  end
  -- end guard
  if there == 1 then
    -- The message comes first: if its queue refuses it (wrong type, no memory), nothing has happened yet.
    if message ~= '' then
      redis.call('LPUSH', KEYS[i + 1], message)
    end
    redis.call('LREM', KEYS[1], -1, letter)
  end
  answers[i] = there
end
return answers
