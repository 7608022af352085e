"""The kinds of the backup queue."""

from __future__ import annotations

from dataclasses import dataclass

from shared.catalog.backups.hooks import ItemHooks, RunHooks
from shared.catalog.context import Catalogue
from shared.catalog.payloads import (
    BACKUP_ITEM,
    BACKUP_PRUNE,
    BACKUP_RUN,
    BackUpItem,
    PruneBackups,
    RunBackup,
)
from shared.outbox.kinds import Kind
from shared.outbox.policy import RetryPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupKinds:
    """The kinds, in the order of a run."""

    run: Kind[RunBackup]
    item: Kind[BackUpItem]
    prune: Kind[PruneBackups]


def backup_kinds(
    catalogue: Catalogue, retry: RetryPolicy, time_limit_seconds: float
) -> BackupKinds:
    """Make the kinds with the retries and the limit of work that waits on storage."""
    run, item = RunHooks(), ItemHooks(catalogue)
    return BackupKinds(
        run=Kind(
            name=BACKUP_RUN,
            payload=RunBackup,
            retry=retry,
            time_limit_seconds=time_limit_seconds,
            locks=run.lock,
            on_end=run.on_end,
            on_retry=run.on_retry,
            events=True,
        ),
        item=Kind(
            name=BACKUP_ITEM,
            payload=BackUpItem,
            retry=retry,
            time_limit_seconds=time_limit_seconds,
            locks=item.lock,
            on_end=item.on_end,
            on_retry=item.on_retry,
            events=True,
        ),
        # What one left undone, the next one does: no hook.
        prune=Kind(
            name=BACKUP_PRUNE,
            payload=PruneBackups,
            retry=retry,
            time_limit_seconds=time_limit_seconds,
            events=True,
        ),
    )
