"""The kinds of the restore queue."""

from __future__ import annotations

from dataclasses import dataclass

from shared.catalog.payloads import RESTORE_BLOB, RESTORE_RUN, RestoreBlob, RunRestore
from shared.catalog.restores.hooks import LossHooks, RestoreHooks
from shared.outbox.kinds import Kind
from shared.outbox.policy import RetryPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreKinds:
    """The kinds of both."""

    blob: Kind[RestoreBlob]
    run: Kind[RunRestore]


def restore_kinds(retry: RetryPolicy, time_limit_seconds: float) -> RestoreKinds:
    """Make the kinds with the retries and the limit of work that waits on storage."""
    blob, run = LossHooks(), RestoreHooks()
    return RestoreKinds(
        blob=Kind(
            name=RESTORE_BLOB,
            payload=RestoreBlob,
            retry=retry,
            time_limit_seconds=time_limit_seconds,
            locks=blob.lock,
            on_end=blob.on_end,
            on_retry=blob.on_retry,
            events=True,
        ),
        run=Kind(
            name=RESTORE_RUN,
            payload=RunRestore,
            retry=retry,
            time_limit_seconds=time_limit_seconds,
            locks=run.lock,
            on_end=run.on_end,
            on_retry=run.on_retry,
            events=True,
        ),
    )
