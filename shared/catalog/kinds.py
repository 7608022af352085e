"""The kinds of task that work on the catalogue: their payloads, retries, limits and hooks.

`register_kinds` makes them known in every process that enqueues, runs or ends such tasks.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Protocol

from shared.catalog import payloads
from shared.catalog.backups.hooks import ItemHooks
from shared.catalog.backups.hooks import RunHooks as BackupHooks
from shared.catalog.context import GRACE_SECONDS, Catalogue, Tasks
from shared.catalog.copy_hooks import CopyHooks
from shared.catalog.hooks import ReviewHooks, UploadHooks
from shared.catalog.notifying.deliveries import LIMIT_SECONDS, RETRY, DeliveryHooks
from shared.catalog.origins.hooks import PullHooks
from shared.catalog.removal_hooks import RemovalHooks
from shared.catalog.replicas.hooks import ReplicaHooks
from shared.catalog.rereviews.hooks import RecheckHooks
from shared.catalog.rereviews.hooks import RunHooks as RereviewHooks
from shared.catalog.restores.hooks import LossHooks, RestoreHooks
from shared.catalog.storage_kind import Hooks, P, storage_kind
from shared.catalog.uploading.hooks import AssemblyHooks
from shared.outbox.kinds import Kind
from shared.outbox.policy import RetryPolicy

#: Tries of a review; its policy says what follows when all have failed.
REVIEW_RETRY = RetryPolicy(max_attempts=8)
#: Of what makes the reviews of a bucket: it asks nobody but the database, and may take weeks.
REVIEW_RUN_RETRY = RetryPolicy(max_attempts=150)
#: Seconds that one execution of a review may take.
REVIEW_LIMIT_SECONDS = 1800.0


class Registers(Tasks, Protocol):
    """An outbox in which kinds are registered."""

    def register(self, kind: Kind[Any], /) -> None:
        """Make a kind known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueKinds:
    """The registered kinds, for `outbox.handler(kinds.upload_store)`."""

    upload_store: Kind[payloads.StoreUpload]
    upload_assemble: Kind[payloads.AssembleUpload]
    review_check: Kind[payloads.CheckReview]
    review_recheck: Kind[payloads.CheckReview]
    review_again: Kind[payloads.ReviewAgain]
    delete_blob: Kind[payloads.DeleteBlob]
    delete_prefix: Kind[payloads.DeletePrefix]
    replica_object: Kind[payloads.CopyObject]
    replica_copy: Kind[payloads.CopyReplica]
    replica_repair: Kind[payloads.CopyReplica]
    backup_run: Kind[payloads.RunBackup]
    backup_item: Kind[payloads.BackUpItem]
    backup_prune: Kind[payloads.PruneBackups]
    restore_blob: Kind[payloads.RestoreBlob]
    restore_run: Kind[payloads.RunRestore]
    origin_pull: Kind[payloads.PullOrigin]
    notify_send: Kind[payloads.SendNotification]


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
    kinds = _kinds(catalogue)
    for field in dataclasses.fields(kinds):
        outbox.register(getattr(kinds, field.name))
    return RegisteredCatalogue(
        tasks=outbox, grace_seconds=grace_seconds, switched_off=switched_off, kinds=kinds
    )


def _kinds(catalogue: Catalogue) -> CatalogueKinds:
    replica = ReplicaHooks()
    return CatalogueKinds(
        upload_store=storage_kind(
            payloads.UPLOAD_STORE, payloads.StoreUpload, UploadHooks(catalogue)
        ),
        upload_assemble=storage_kind(
            payloads.UPLOAD_ASSEMBLE, payloads.AssembleUpload, AssemblyHooks()
        ),
        review_check=_review_kind(
            payloads.REVIEW_CHECK, payloads.CheckReview, ReviewHooks(catalogue)
        ),
        review_recheck=_review_kind(
            payloads.REVIEW_RECHECK, payloads.CheckReview, RecheckHooks(catalogue)
        ),
        review_again=storage_kind(
            payloads.REVIEW_AGAIN,
            payloads.ReviewAgain,
            RereviewHooks(),
            retry=REVIEW_RUN_RETRY,
            limit_seconds=REVIEW_LIMIT_SECONDS,
        ),
        # A blob whose delete task failed is found by the sweep.
        delete_blob=storage_kind(payloads.DELETE_BLOB, payloads.DeleteBlob, None),
        delete_prefix=storage_kind(payloads.DELETE_PREFIX, payloads.DeletePrefix, RemovalHooks()),
        replica_object=storage_kind(
            payloads.REPLICA_OBJECT, payloads.CopyObject, CopyHooks(catalogue)
        ),
        replica_copy=storage_kind(payloads.REPLICA_COPY, payloads.CopyReplica, replica),
        replica_repair=storage_kind(payloads.REPLICA_REPAIR, payloads.CopyReplica, replica),
        backup_run=storage_kind(payloads.BACKUP_RUN, payloads.RunBackup, BackupHooks()),
        backup_item=storage_kind(payloads.BACKUP_ITEM, payloads.BackUpItem, ItemHooks(catalogue)),
        # What one left undone, the next one does.
        backup_prune=storage_kind(payloads.BACKUP_PRUNE, payloads.PruneBackups, None),
        restore_blob=storage_kind(payloads.RESTORE_BLOB, payloads.RestoreBlob, LossHooks()),
        restore_run=storage_kind(payloads.RESTORE_RUN, payloads.RunRestore, RestoreHooks()),
        # Tries are counted per source; the policy is a net below that.
        origin_pull=storage_kind(payloads.ORIGIN_PULL, payloads.PullOrigin, PullHooks()),
        notify_send=storage_kind(
            payloads.NOTIFY_SEND,
            payloads.SendNotification,
            DeliveryHooks(),
            retry=RETRY,
            limit_seconds=LIMIT_SECONDS,
        ),
    )


def _review_kind(name: str, payload: type[P], hooks: Hooks) -> Kind[P]:
    return storage_kind(
        name, payload, hooks, retry=REVIEW_RETRY, limit_seconds=REVIEW_LIMIT_SECONDS
    )
