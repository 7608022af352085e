"""An origin's host as something that only so many executions ask for one bucket, over all nodes.

Of one bucket: another's path on the same host may hang, and must not take its places.
"""

from __future__ import annotations

import hashlib

from shared.fetch import Target
from shared.outbox.ports import Limits

_PREFIX = "origin:"
#: Characters that the column of resources takes.
_MOST = 191


def resource_of(bucket_id: int, target: Target) -> str:
    """Return the resource on which a bucket's pulls are parked that wait for a host."""
    name = f"{_PREFIX}{bucket_id}:{target.scheme}://{target.host_header}"
    if len(name) <= _MOST:
        return name
    return _PREFIX + hashlib.sha256(name.encode()).hexdigest()


class OriginLimits:
    """The limit of every bucket's hosts, beside those of other resources."""

    def __init__(self, others: Limits, *, max_running: int) -> None:
        self._others = others
        self._max_running = max_running

    def limit(self, name: str) -> int:
        """See Limits.limit."""
        if name.startswith(_PREFIX):
            return self._max_running
        return self._others.limit(name)
