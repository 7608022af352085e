"""The kinds of task that work on the catalogue: their payloads, retries, limits and hooks.

`register_kinds` makes them known in every process that enqueues, runs or ends such tasks.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Protocol

from shared.catalog.backups.kinds import backup_kinds
from shared.catalog.context import GRACE_SECONDS, Catalogue, Tasks
from shared.catalog.copy_hooks import CopyHooks
from shared.catalog.hooks import ReviewHooks, UploadHooks
from shared.catalog.notifying.deliveries import notify_kind
from shared.catalog.origins.kinds import origin_pull_kind
from shared.catalog.payloads import (
    DELETE_BLOB,
    DELETE_PREFIX,
    REPLICA_OBJECT,
    REVIEW_CHECK,
    UPLOAD_ASSEMBLE,
    UPLOAD_STORE,
    AssembleUpload,
    BackUpItem,
    CheckReview,
    CopyObject,
    CopyReplica,
    DeleteBlob,
    DeletePrefix,
    PruneBackups,
    PullOrigin,
    RestoreBlob,
    ReviewAgain,
    RunBackup,
    RunRestore,
    SendNotification,
    StoreUpload,
)
from shared.catalog.removal_hooks import RemovalHooks
from shared.catalog.replicas.kinds import replica_kinds
from shared.catalog.rereviews.kinds import rereview_kinds
from shared.catalog.restores.kinds import restore_kinds
from shared.catalog.uploading.hooks import AssemblyHooks
from shared.outbox.kinds import Kind
from shared.outbox.policy import RetryPolicy

__all__ = [
    "DELETE_BLOB",
    "DELETE_PREFIX",
    "REVIEW_CHECK",
    "UPLOAD_ASSEMBLE",
    "UPLOAD_STORE",
    "AssembleUpload",
    "CatalogueKinds",
    "CheckReview",
    "DeleteBlob",
    "DeletePrefix",
    "RegisteredCatalogue",
    "StoreUpload",
    "register_kinds",
]

#: A day of tries for work that waits on storage; the count is only a net below that.
STORAGE_RETRY = RetryPolicy(max_attempts=150, give_up_after_seconds=24 * 3600.0)
#: Seconds that one execution may take: a large file over a slow channel.
STORAGE_LIMIT_SECONDS = 6 * 3600.0
#: Seconds that one execution of a review may take.
REVIEW_LIMIT_SECONDS = 1800.0


class Registers(Tasks, Protocol):
    """An outbox in which kinds are registered."""

    def register(self, kind: Kind[Any], /) -> None:
        """Make a kind known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueKinds:
    """The registered kinds, for `outbox.handler(kinds.upload_store)`."""

    upload_store: Kind[StoreUpload]
    upload_assemble: Kind[AssembleUpload]
    review_check: Kind[CheckReview]
    review_recheck: Kind[CheckReview]
    review_again: Kind[ReviewAgain]
    delete_blob: Kind[DeleteBlob]
    delete_prefix: Kind[DeletePrefix]
    replica_object: Kind[CopyObject]
    replica_copy: Kind[CopyReplica]
    replica_repair: Kind[CopyReplica]
    backup_run: Kind[RunBackup]
    backup_item: Kind[BackUpItem]
    backup_prune: Kind[PruneBackups]
    restore_blob: Kind[RestoreBlob]
    restore_run: Kind[RunRestore]
    origin_pull: Kind[PullOrigin]
    notify_send: Kind[SendNotification]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredCatalogue(Catalogue):
    """A catalogue together with the kinds that were registered for it."""

    kinds: CatalogueKinds


def register_kinds(
    outbox: Registers,
    *,
    grace_seconds: float = GRACE_SECONDS,
    switched_off: frozenset[str] = frozenset(),
) -> RegisteredCatalogue:
    """Register the catalogue's kinds in an outbox and return the catalogue that uses it.

    Call it once per outbox, in every process: whoever ends a task must know its kind.
    """
    catalogue = Catalogue(tasks=outbox, grace_seconds=grace_seconds, switched_off=switched_off)
    upload, review = UploadHooks(catalogue), ReviewHooks(catalogue)
    assembly, removal, copy = AssemblyHooks(), RemovalHooks(), CopyHooks(catalogue)
    replica_copy, replica_repair = replica_kinds(STORAGE_RETRY, STORAGE_LIMIT_SECONDS)
    backups = backup_kinds(catalogue, STORAGE_RETRY, STORAGE_LIMIT_SECONDS)
    rereviews = rereview_kinds(catalogue, RetryPolicy(max_attempts=8), REVIEW_LIMIT_SECONDS)
    restores = restore_kinds(STORAGE_RETRY, STORAGE_LIMIT_SECONDS)
    kinds = CatalogueKinds(
        backup_run=backups.run,
        backup_item=backups.item,
        backup_prune=backups.prune,
        restore_blob=restores.blob,
        restore_run=restores.run,
        review_again=rereviews.again,
        review_recheck=rereviews.recheck,
        replica_copy=replica_copy,
        replica_repair=replica_repair,
        notify_send=notify_kind(),
        origin_pull=origin_pull_kind(STORAGE_RETRY, STORAGE_LIMIT_SECONDS),
        upload_store=Kind(
            name=UPLOAD_STORE,
            payload=StoreUpload,
            retry=STORAGE_RETRY,
            time_limit_seconds=STORAGE_LIMIT_SECONDS,
            locks=upload.lock,
            on_end=upload.on_end,
            on_retry=upload.on_retry,
            events=True,
        ),
        upload_assemble=Kind(
            name=UPLOAD_ASSEMBLE,
            payload=AssembleUpload,
            retry=STORAGE_RETRY,
            time_limit_seconds=STORAGE_LIMIT_SECONDS,
            locks=assembly.lock,
            on_end=assembly.on_end,
            on_retry=assembly.on_retry,
            events=True,
        ),
        review_check=Kind(
            name=REVIEW_CHECK,
            payload=CheckReview,
            retry=RetryPolicy(max_attempts=8),
            time_limit_seconds=REVIEW_LIMIT_SECONDS,
            locks=review.lock,
            on_end=review.on_end,
            on_retry=review.on_retry,
            events=True,
        ),
        # A blob whose delete task failed is found by the sweep: no hook.
        delete_blob=Kind(
            name=DELETE_BLOB,
            payload=DeleteBlob,
            retry=STORAGE_RETRY,
            time_limit_seconds=STORAGE_LIMIT_SECONDS,
            events=True,
        ),
        delete_prefix=Kind(
            name=DELETE_PREFIX,
            payload=DeletePrefix,
            retry=STORAGE_RETRY,
            time_limit_seconds=STORAGE_LIMIT_SECONDS,
            locks=removal.lock,
            on_end=removal.on_end,
            on_retry=removal.on_retry,
            events=True,
        ),
        replica_object=Kind(
            name=REPLICA_OBJECT,
            payload=CopyObject,
            retry=STORAGE_RETRY,
            time_limit_seconds=STORAGE_LIMIT_SECONDS,
            locks=copy.lock,
            on_end=copy.on_end,
            on_retry=copy.on_retry,
            events=True,
        ),
    )
    for field in dataclasses.fields(kinds):
        outbox.register(getattr(kinds, field.name))
    return RegisteredCatalogue(
        tasks=outbox, grace_seconds=grace_seconds, switched_off=switched_off, kinds=kinds
    )
