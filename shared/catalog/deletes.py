"""A DELETE's commit: the key's versions end, and bytes that nobody refers to are condemned.

It may be repeated in a fresh transaction, and again after its commit: then nothing is left to do.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from shared.catalog.blobs import dispose_staged, drop_reference
from shared.catalog.conditions import UNCONDITIONAL, Conditions
from shared.catalog.context import Catalogue
from shared.catalog.holds import refuse_held
from shared.catalog.limits import check_key
from shared.catalog.locking import LockedKey, lock_key, share_bucket
from shared.catalog.models import UNFINISHED, HolderKind, Version, VersionState
from shared.catalog.supersede import end_versions
from shared.catalog.versions import refresh


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteAnswer:
    """What was there: the version that a GET served, and the task that will delete its bytes.

    `task_id` is None while others refer to the same content, or when it was never stored. The
    staging files of `released` may be unlinked after the commit.
    """

    existed: bool
    version_id: int | None = None
    task_id: int | None = None
    released: tuple[str, ...] = ()


def delete_object(
    session: Session,
    catalogue: Catalogue,
    bucket_id: int,
    key: str,
    *,
    conditions: Conditions = UNCONDITIONAL,
) -> DeleteAnswer:
    """Delete a key: its current, pending, reviewing and failed versions.

    Unfinished tasks of the key are superseded, and what only a failure has blocked cannot be
    reviewed again: it would come back. Deleting what is not there is no error. Raises
    PreconditionError, ConflictError (`object_held`), NotFoundError (`bucket_not_found`) and
    SwitchedOffError; then nothing is written.
    """
    check_key(key)
    catalogue.need("delete")
    bucket = share_bucket(session, bucket_id)
    locked = lock_key(session, bucket.id, key, create=False, blocked=True)
    served = None if locked is None else locked.served
    conditions.judge(None if served is None else served.etag)
    if locked is None:
        return DeleteAnswer(existed=False)
    refuse_held(session, locked)
    for version in _blocked(locked):
        dispose_staged(session, catalogue, locked.blob_of(version))
        del locked.versions[version.id]
    if not locked.versions:
        return DeleteAnswer(existed=False)
    locked.row.generation += 1
    unfinished = [v for _, v in sorted(locked.versions.items()) if v.state in UNFINISHED]
    stored = locked.stored
    superseded = end_versions(session, catalogue, locked, unfinished, state=VersionState.DELETED)
    task_id = None
    if stored is not None:
        stored.state = VersionState.DELETED
        stored.ended_at = locked.now
        task_id = drop_reference(
            session, catalogue, locked.blob_of(stored), HolderKind.VERSION, stored.id
        )
    refresh(session, locked)
    if superseded:
        catalogue.tasks.supersede(session, superseded)
    return DeleteAnswer(
        existed=True,
        version_id=None if served is None else served.id,
        task_id=task_id,
        released=tuple(locked.released),
    )


def _blocked(locked: LockedKey) -> list[Version]:
    return [v for _, v in sorted(locked.versions.items()) if v.state == VersionState.BLOCKED]
