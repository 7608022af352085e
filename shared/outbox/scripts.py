"""The few Lua scripts that touch Redis, so that each step there is one atomic call.

Written for Redis 6.2. Keys are those of one queue; Sentinel is fine, Redis Cluster is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

from shared.outbox.messages import encode

#: Messages of one fetch. Lua's stack holds some 8,000 values, and a script that breaks there has
#: taken the ids off the list already.
MAX_FETCH = 1000

#: KEYS list, messages, bell; ARGV id, data, id, data ... Puts messages at the tail and rings once.
_PUSH = """
for i = 1, #ARGV, 2 do
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
  redis.call('RPUSH', KEYS[1], ARGV[i])
end
if redis.call('EXISTS', KEYS[3]) == 0 then redis.call('LPUSH', KEYS[3], '1') end
return redis.call('LLEN', KEYS[1])
"""

#: KEYS list, messages, bell, low mark, filler's bell; ARGV how many. Takes messages off for good.
#: A bell stays rung exactly while messages are left. The filler is rung when the window runs low.
_FETCH = """
local ids = redis.call('LPOP', KEYS[1], tonumber(ARGV[1]))
local left = redis.call('LLEN', KEYS[1])
if left > 0 then
  if redis.call('EXISTS', KEYS[3]) == 0 then redis.call('LPUSH', KEYS[3], '1') end
else
  redis.call('DEL', KEYS[3])
end
local low = redis.call('GET', KEYS[4])
if low and left < tonumber(low) and redis.call('EXISTS', KEYS[5]) == 0 then
  redis.call('LPUSH', KEYS[5], '1')
end
if not ids then return {} end
local bodies = redis.call('HMGET', KEYS[2], unpack(ids))
redis.call('HDEL', KEYS[2], unpack(ids))
return bodies
"""

#: KEYS list, bell. Rings again for a bell that was popped without room to fetch.
_RERING = """
if redis.call('LLEN', KEYS[1]) > 0 and redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('LPUSH', KEYS[2], '1')
end
return 1
"""

#: KEYS bell; ARGV text, seconds. Rings a bell that nobody may be listening to: it expires.
_RING = """
if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('LPUSH', KEYS[1], ARGV[1]) end
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
"""


class Scripts:
    """The scripts, bound to one client and one key prefix. Raises redis.RedisError as it comes."""

    def __init__(self, client: redis.Redis, namespace: str) -> None:
        self.namespace = namespace
        self._client = client
        self._push = client.register_script(_PUSH)
        self._fetch = client.register_script(_FETCH)
        self._rering = client.register_script(_RERING)
        self._ring = client.register_script(_RING)

    def list_key(self, queue_name: str) -> str:
        """Return the list of dispatch ids of a queue."""
        return f"{self.namespace}:{queue_name}"

    def messages_key(self, queue_name: str) -> str:
        """Return the hash dispatch id -> message of a queue."""
        return f"{self.namespace}:{queue_name}.msgs"

    def bell_key(self, queue_name: str) -> str:
        """Return the bell of a queue: a list that is not empty while messages wait."""
        return f"{self.namespace}:{queue_name}.bell"

    def low_key(self, queue_name: str) -> str:
        """Return the low-water mark below which a fetch rings the filler."""
        return f"{self.namespace}:{queue_name}.low"

    @property
    def fill_bell_key(self) -> str:
        """Return the bell of the filler; no queue can have a bell of this name."""
        return f"{self.namespace}:bell:fill"

    def node_bell_key(self, node: str) -> str:
        """Return the bell of one process, rung for cancels of what it runs."""
        return f"{self.namespace}:bell:{node}"

    def push(self, queue_name: str, messages: Sequence[tuple[int, str]]) -> int:
        """Put (task id, dispatch id) pairs into a queue; returns the length of its list."""
        args: list[str] = []
        for task_id, dispatch_id in messages:
            args.append(dispatch_id)
            args.append(encode(queue_name, task_id, dispatch_id))
        return int(self._push(keys=self._queue_keys(queue_name), args=args))

    def fetch(self, queue_name: str, count: int) -> list[bytes]:
        """Take up to `count` messages off a queue; from here on only their rows know of them.

        Never more than `MAX_FETCH` at a time.
        """
        keys = [*self._queue_keys(queue_name), self.low_key(queue_name), self.fill_bell_key]
        answer: list[Any] = self._fetch(keys=keys, args=[min(count, MAX_FETCH)])
        return [body for body in answer if body is not None]

    def length(self, queue_name: str) -> int:
        """Return how many messages wait in a queue."""
        length: Any = self._client.llen(self.list_key(queue_name))
        return int(length)

    def rering(self, queue_name: str) -> None:
        """Ring a queue's bell again if messages wait."""
        self._rering(keys=[self.list_key(queue_name), self.bell_key(queue_name)])

    def ring_filler(self) -> None:
        """Wake the filler."""
        self._ring(keys=[self.fill_bell_key], args=["1", 60])

    def ring(self, key: str) -> None:
        """Ring any bell; it expires when nobody listens."""
        self._ring(keys=[key], args=["1", 60])

    def ring_node(self, node: str) -> None:
        """Wake one process, so that it looks for cancels now."""
        self._ring(keys=[self.node_bell_key(node)], args=["1", 60])

    def _queue_keys(self, queue_name: str) -> list[str]:
        return [
            self.list_key(queue_name),
            self.messages_key(queue_name),
            self.bell_key(queue_name),
        ]
