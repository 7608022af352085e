"""The kinds of the replica queue that copy one blob to one channel."""

from __future__ import annotations

from shared.catalog.payloads import REPLICA_COPY, REPLICA_REPAIR, CopyReplica
from shared.catalog.replicas.hooks import ReplicaHooks
from shared.outbox.kinds import Kind
from shared.outbox.policy import RetryPolicy


def replica_kinds(
    retry: RetryPolicy, time_limit_seconds: float
) -> tuple[Kind[CopyReplica], Kind[CopyReplica]]:
    """Return `replica.copy` and `replica.repair`."""
    hooks = ReplicaHooks()

    def kind(name: str) -> Kind[CopyReplica]:
        return Kind(
            name=name,
            payload=CopyReplica,
            retry=retry,
            time_limit_seconds=time_limit_seconds,
            locks=hooks.lock,
            on_end=hooks.on_end,
            on_retry=hooks.on_retry,
            events=True,
        )

    return kind(REPLICA_COPY), kind(REPLICA_REPAIR)
