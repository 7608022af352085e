"""The Redis client of the request path and the heartbeat: bounded, it repeats nothing."""

from __future__ import annotations

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry as RedisRetry


def make_client(redis_url: str, timeout_seconds: float) -> redis.Redis:
    """Return a client that answers or fails within the time, and repeats nothing by itself.

    A repeated push or a repeated fetch whose first answer was lost would be two of them.
    """
    return redis.Redis.from_url(
        redis_url,
        socket_timeout=timeout_seconds,
        socket_connect_timeout=min(timeout_seconds, 2.0),
        retry=RedisRetry(NoBackoff(), 0),
    )
