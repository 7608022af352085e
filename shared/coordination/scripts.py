"""The Lua of the slots: each step is one atomic call, timed by Redis's own clock.

Written for Redis 6.2. A slot's key is a sorted set of token → expiry in milliseconds; a member
`reserved:<task id>` keeps a place for one task. Without an epoch nothing is known of who holds
what, and nobody is let in.
"""

from __future__ import annotations

#: An epoch is "<id> <run id of the server>": another server, or a restarted one, has none.
_COMMON = """
local function now()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
local function run_id()
  return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
end
local function epoch(key)
  local value = redis.call('GET', key)
  if not value then return false end
  local id, run = string.match(value, '^(%S+) (%S+)$')
  if run ~= run_id() then return false end
  return id
end
local function drop_expired(key, t)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', t)
end
local function is_alive(key, member, t)
  local score = redis.call('ZSCORE', key, member)
  return score and tonumber(score) > t
end
local function put(key, member, expires)
  redis.call('ZADD', key, expires, member)
  local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
  redis.call('PEXPIREAT', key, last[2])
end
"""

#: KEYS epoch, slot; ARGV token, its milliseconds, the epoch's, limit, the task's reservation.
ACQUIRE = (
    _COMMON
    + """
local id = epoch(KEYS[1])
if not id then return {'no_epoch', ''} end
local t = now()
redis.call('PEXPIRE', KEYS[1], ARGV[3])
drop_expired(KEYS[2], t)
local had = redis.call('ZREM', KEYS[2], ARGV[5])
if had == 0 and redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[4]) then return {'full', ''} end
put(KEYS[2], ARGV[1], t + ARGV[2])
return {'held', id}
"""
)

#: KEYS epoch, slot; ARGV epoch as it was at the acquire, token.
CONFIRM = (
    _COMMON
    + """
if epoch(KEYS[1]) == ARGV[1] and is_alive(KEYS[2], ARGV[2], now()) then return 1 end
redis.call('ZREM', KEYS[2], ARGV[2])
return 0
"""
)

#: KEYS epoch, then a slot per token; ARGV the tokens' milliseconds, the epoch's, then the tokens.
#: 1 renewed, 0 lost; an empty answer when there is no epoch, which says nothing of any.
RENEW = (
    _COMMON
    + """
if not epoch(KEYS[1]) then return {} end
local t = now()
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local answers = {}
for i = 3, #ARGV do
  local key = KEYS[i - 1]
  if is_alive(key, ARGV[i], t) then
    put(key, ARGV[i], t + ARGV[1])
    answers[i - 2] = 1
  else
    answers[i - 2] = 0
  end
end
return answers
"""
)

#: KEYS slot; ARGV own token, the task's reservation, its milliseconds, limit. A place above the
#: limit, which was lowered, is not given on.
HAND_OVER = (
    _COMMON
    + """
local t = now()
if not is_alive(KEYS[1], ARGV[1], t) then
  redis.call('ZREM', KEYS[1], ARGV[1])
  return 'gone'
end
if is_alive(KEYS[1], ARGV[2], t) then return 'taken' end
drop_expired(KEYS[1], t)
local over = redis.call('ZCARD', KEYS[1]) > tonumber(ARGV[4])
redis.call('ZREM', KEYS[1], ARGV[1])
if over then return 'gone' end
put(KEYS[1], ARGV[2], t + ARGV[3])
return 'reserved'
"""
)

#: KEYS epoch, slot; ARGV the task's reservation, its milliseconds, limit.
RESERVE = (
    _COMMON
    + """
if not epoch(KEYS[1]) then return 'no_epoch' end
local t = now()
drop_expired(KEYS[2], t)
if is_alive(KEYS[2], ARGV[1], t) then return 'taken' end
if redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[3]) then return 'full' end
put(KEYS[2], ARGV[1], t + ARGV[2])
return 'reserved'
"""
)

#: KEYS epoch, slot. How many places are held or reserved; -1 without an epoch.
IN_USE = (
    _COMMON
    + """
if not epoch(KEYS[1]) then return -1 end
return redis.call('ZCOUNT', KEYS[2], '(' .. now(), '+inf')
"""
)

#: KEYS lock; ARGV its value, milliseconds. A lock that ends later than any that is taken here, or
#: never, is nobody's: a restored copy lost its time to live, or the server's clock was set back.
BEGIN_REBUILD = """
local left = redis.call('PTTL', KEYS[1])
if left >= 0 and left <= tonumber(ARGV[2]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""

#: KEYS epoch, lock, then a slot per token; ARGV lock's value, epoch id, the epoch's milliseconds,
#: the tokens' milliseconds, then the tokens.
ENTER = (
    _COMMON
    + """
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[2])
if epoch(KEYS[1]) then return 0 end
local t = now()
for i = 5, #ARGV do put(KEYS[i - 2], ARGV[i], t + ARGV[4]) end
redis.call('SET', KEYS[1], ARGV[2] .. ' ' .. run_id(), 'PX', ARGV[3])
return 1
"""
)
