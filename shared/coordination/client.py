"""The Redis client of coordination: bounded, and it repeats nothing by itself."""

from __future__ import annotations

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry


def make_client(redis_url: str, timeout_seconds: float) -> redis.Redis:
    """Return a client whose every command answers or fails within the time.

    A repeated acquire whose first answer was lost would hold two places.
    """
    return redis.Redis.from_url(
        redis_url,
        socket_timeout=timeout_seconds,
        socket_connect_timeout=timeout_seconds,
        retry=Retry(NoBackoff(), 0),
        decode_responses=True,
    )
