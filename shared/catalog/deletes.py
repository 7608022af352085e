"""A DELETE's commit: the key's versions end, and bytes that nobody refers to are condemned.

It may be repeated in a fresh transaction, and again after its commit: then nothing is left to do.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.blobs import dispose_staged, drop_reference
from shared.catalog.conditions import UNCONDITIONAL, Conditions
from shared.catalog.context import Catalogue
from shared.catalog.holds import refuse_held
from shared.catalog.limits import check_key
from shared.catalog.locking import LockedKey, lock_key, share_bucket
from shared.catalog.models import (
    LIVING,
    UNFINISHED,
    Copy,
    CopyState,
    HolderKind,
    Version,
    VersionState,
    by_index,
)
from shared.catalog.notifying.emitting import EventType, emit
from shared.catalog.origins.outrunning import is_pulled
from shared.catalog.quarantine import ALL, UpTo, is_quarantined, note_deletion
from shared.catalog.supersede import end_versions, is_last_word
from shared.catalog.uploading.arriving import end_arriving
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


@dataclass(frozen=True, slots=True)
class Ended:
    """What ending a key's versions left to do: the tasks that worked on them, ascending.

    `task_id` is the task that deletes the stored one's bytes, if nobody else needs them.
    """

    task_id: int | None
    superseded: list[int]


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
    reviewed again: it would come back. Deleting what is not there is no error, and what is being
    fetched for it from an origin does not arrive. Raises PreconditionError, ConflictError
    (`object_held`), NotFoundError (`bucket_not_found`) and SwitchedOffError; then nothing is
    written.
    """
    check_key(key)
    catalogue.need("delete")
    bucket = share_bucket(session, bucket_id)
    locked = lock_key(session, bucket.id, key, create=False, blocked=True)
    if locked is None:
        # Again if there is no pull: one may just have been committed.
        is_made = is_pulled(session, bucket.id, key)
        locked = lock_key(session, bucket.id, key, create=is_made, blocked=True)
    served = None if locked is None else locked.served
    conditions.judge(None if served is None else served.etag)
    if locked is None:
        return DeleteAnswer(existed=False)
    refuse_held(session, locked)
    arriving = []
    if not _is_readable_newest(locked):
        arriving = end_arriving(session, bucket, key)
    ended = end_living(session, catalogue, locked)
    superseded = sorted({*arriving, *(ended.superseded if ended else ())})
    if superseded:
        catalogue.tasks.supersede(session, superseded)
    if ended is None:
        return DeleteAnswer(existed=False)
    return DeleteAnswer(
        existed=True,
        version_id=None if served is None else served.id,
        task_id=ended.task_id,
        released=tuple(locked.released),
    )


def _is_readable_newest(locked: LockedKey) -> bool:
    """Tell whether the last write is what is read: it has overwritten all that is on its way."""
    served = locked.served
    return served is not None and served.generation == locked.row.generation


def end_living(
    session: Session,
    catalogue: Catalogue,
    locked: LockedKey,
    *,
    newest_version_id: int | None = None,
    newest_generation: int | None = None,
) -> Ended | None:
    """End the living versions of a locked key, only those up to an id or a generation if given.

    By id they are those that were there at a moment, by generation one and what it overwrites: a
    write that was asked for earlier may have got its row later.

    Those whose review may be tried again are given up as well, where the key was locked with them.
    None when there is nothing to end. The caller supersedes the tasks that are returned, last.
    """
    up_to = UpTo(newest_version_id, newest_generation)
    chosen = [version for _, version in sorted(locked.versions.items()) if up_to.has(version)]
    for version in chosen:
        if version.state == VersionState.BLOCKED:
            dispose_staged(session, catalogue, locked.blob_of(version))
    living = [version for version in chosen if version.state in LIVING]
    if not living:
        # What was blocked before this must not be released after it, and nothing may arrive.
        is_coming = up_to.is_all and _is_coming(session, locked)
        if is_coming or is_quarantined(session, locked.row.id, up_to):
            take_generation(session, locked, up_to)
            session.flush()
        return None
    unfinished = [version for version in living if version.state in UNFINISHED]
    superseded = end_versions(session, catalogue, locked, unfinished, state=VersionState.DELETED)
    task_id = None
    for version in living:
        if version.state == VersionState.STORED:
            task_id = end_stored(session, catalogue, locked, version)
    # Written together with what `refresh` sets.
    take_generation(session, locked, up_to)
    refresh(session, locked)
    # The newest is what a reader saw go.
    emit(session, catalogue, max(living, key=lambda one: one.generation), EventType.DELETED)
    return Ended(task_id, superseded)


def take_generation(
    session: Session, locked: LockedKey, up_to: UpTo = ALL, *, is_now: bool = True
) -> None:
    """Take a key's next generation, so that whoever began before finds that a newer one has won.

    What was asked for at an earlier time (`is_now` False, or not of all versions) takes none where
    the newest is no version's: a deletion has it, or a copy that was asked for later and is still
    under way.
    """
    # What was blocked before this must not be released after it.
    note_deletion(session, locked.row.id, up_to)
    is_now = is_now and up_to.is_all
    if is_now or (_is_of_a_version(session, locked) and not _is_of_a_copy(session, locked)):
        locked.row.generation += 1


def _is_of_a_version(session: Session, locked: LockedKey) -> bool:
    newest = locked.row.generation
    if any(version.generation == newest for version in locked.versions.values()):
        return True
    found = sa.exists().where(Version.object_id == locked.row.id, Version.generation == newest)
    return session.scalar(sa.select(found)) is True


def _is_coming(session: Session, locked: LockedKey) -> bool:
    """Tell whether a copy to this key or its fetch from an origin is under way."""
    row = locked.row
    return _is_of_a_copy(session, locked) or is_pulled(session, row.bucket_id, row.key)


def _is_of_a_copy(session: Session, locked: LockedKey) -> bool:
    """Tell whether a copy to this key is under way, and nothing that counts was asked for later."""
    statement = sa.select(Copy.generation, Copy.task_id).where(
        Copy.state == CopyState.PENDING, Copy.target_object_id == locked.row.id
    )
    found = session.execute(by_index(statement, Copy, "ix_copies_target")).all()
    newest = max(found, key=lambda row: row.generation, default=None)
    return newest is not None and is_last_word(
        session, locked.row, newest.generation, task_id=newest.task_id
    )


def end_stored(
    session: Session, catalogue: Catalogue, locked: LockedKey, version: Version
) -> int | None:
    """Let a stored version be deleted; returns the task that removes bytes nobody else needs.

    The object row is not refreshed.
    """
    version.state = VersionState.DELETED
    version.ended_at = locked.now
    blob = locked.blob_of(version)
    return drop_reference(session, catalogue, blob, HolderKind.VERSION, version.id)
