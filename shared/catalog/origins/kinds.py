"""The kind of task that fetches an absent key."""

from __future__ import annotations

from shared.catalog.origins.hooks import PullHooks
from shared.catalog.payloads import ORIGIN_PULL, PullOrigin
from shared.outbox.kinds import Kind
from shared.outbox.policy import RetryPolicy


def origin_pull_kind(retry: RetryPolicy, time_limit_seconds: float) -> Kind[PullOrigin]:
    """Return `origin.pull`; tries are counted per source, the policy is a net below that."""
    hooks = PullHooks()
    return Kind(
        name=ORIGIN_PULL,
        payload=PullOrigin,
        retry=retry,
        time_limit_seconds=time_limit_seconds,
        locks=hooks.lock,
        on_end=hooks.on_end,
        on_retry=hooks.on_retry,
        events=True,
    )
