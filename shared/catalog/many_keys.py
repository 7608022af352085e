"""Locking several keys in one transaction, in the one order of all locks.

First all objects by ascending id, then all their versions, then all blobs: as if they were one key.
"""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.locking import LockedKey, insert_object, lock_rows
from shared.catalog.models import (
    LIVING,
    Blob,
    BlobState,
    ObjectRow,
    Version,
    VersionState,
    utc_clock,
)


def find_object(session: Session, bucket_id: int, key: str) -> int | None:
    """Return the id of a key's object row, which is never deleted while its bucket is there."""
    return session.scalar(
        sa.select(ObjectRow.id).where(ObjectRow.bucket_id == bucket_id, ObjectRow.key == key)
    )


def lock_keys(
    session: Session,
    object_ids: Iterable[int],
    *,
    blocked: bool = False,
    blob_id: int | None = None,
) -> dict[int, LockedKey]:
    """Lock objects with their living versions and the blobs of these; by object id.

    With `blocked`, also the versions that only a failure has blocked; with `blob_id`, also that
    blob, which is then among those of every key.
    """
    keys = _lock_objects(session, object_ids)
    _lock_contents(session, keys, blocked=blocked, blob_id=blob_id)
    return keys


def lock_pair(
    session: Session, *, source_id: int, target: tuple[int, str]
) -> tuple[LockedKey | None, LockedKey]:
    """Lock a source's key and that of a target, whose row is made when it is missing.

    They may be the same. The source is None when it has gone.
    """
    target_id = find_object(session, *target)
    keys = _lock_objects(session, [source_id, *([] if target_id is None else [target_id])])
    if target_id is None:
        # Made after the source was locked: what is new has the larger id.
        insert_object(session, *target)
        target_id = find_object(session, *target)
        if target_id is None:
            raise LookupError("the object row vanished under its own insert")
        keys |= _lock_objects(session, [target_id])
    _lock_contents(session, keys)
    return keys.get(source_id), keys[target_id]


def _lock_objects(session: Session, object_ids: Iterable[int]) -> dict[int, LockedKey]:
    rows = lock_rows(session, ObjectRow, object_ids)
    if not rows:
        return {}
    # After the last lock, so that no key's times go back.
    now = session.execute(sa.select(utc_clock())).scalar_one()
    return {row.id: LockedKey(row=row, now=now) for row in rows.values()}


def _lock_contents(
    session: Session,
    keys: dict[int, LockedKey],
    *,
    blocked: bool = False,
    blob_id: int | None = None,
) -> None:
    if not keys:
        return
    wanted = set(
        session.scalars(
            sa.select(Version.id).where(
                Version.object_id.in_(sorted(keys)), Version.state.in_(sorted(LIVING))
            )
        )
    )
    if blocked:
        wanted |= _retryable(session, keys)
    versions = lock_rows(session, Version, wanted)
    extra = [] if blob_id is None else [blob_id]
    blobs = lock_rows(session, Blob, [*extra, *(one.blob_id for one in versions.values())])
    for version in versions.values():
        locked = keys[version.object_id]
        locked.versions[version.id] = version
        if version.blob_id in blobs:
            locked.blobs[version.blob_id] = blobs[version.blob_id]
    for locked in keys.values():
        locked.blobs |= {one: blobs[one] for one in extra if one in blobs}


def _retryable(session: Session, keys: dict[int, LockedKey]) -> set[int]:
    return set(
        session.scalars(
            sa.select(Version.id)
            .join(Blob, Blob.id == Version.blob_id)
            .where(
                Version.object_id.in_(sorted(keys)),
                Version.state == VersionState.BLOCKED,
                Blob.state == BlobState.STAGED,
            )
        )
    )
