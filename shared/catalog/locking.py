"""Row locks of the catalogue, always in one order: bucket, object, versions, blobs, then tasks.

Rows of one table are locked by ascending id and read anew under their lock. The object's lock
guards all its versions, a blob's lock its references and its state.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.orm import Session

from shared.catalog.models import (
    LIVING,
    SERVED,
    UNFINISHED,
    Blob,
    BlobState,
    Bucket,
    ObjectRow,
    Version,
    VersionState,
    utc_clock,
)
from shared.core.errors import NotFoundError
from shared.outbox.schema import tasks

_Row = TypeVar("_Row", ObjectRow, Version, Blob)

#: An index the planner must take: over a small table it would scan, and lock, everything.
_BY_PRIMARY = "FORCE INDEX (PRIMARY)"
_OBJECTS = cast("sa.Table", ObjectRow.__table__)
_CONTENT_STATES = (BlobState.STAGED, BlobState.LIVE, BlobState.CONDEMNED)


class Content(NamedTuple):
    """What makes two uploads the same: dedupe never crosses tenants."""

    tenant_id: str
    sha256: str
    size_bytes: int


@dataclass(slots=True)
class LockedKey:
    """An object and all that a change of it may touch, locked and fresh.

    `versions` are the living ones by id, and `version` when one was named. `blobs` are theirs, by
    id. `winner` holds the live slot of the content in question, if a blob does. `now` is the
    database's clock after the object's lock was given, so times of one key never go back.
    `released` are staging files that this transaction has ceased to name: who commits it may
    unlink them afterwards.
    """

    row: ObjectRow
    now: dt.datetime
    versions: dict[int, Version] = field(default_factory=dict)
    blobs: dict[int, Blob] = field(default_factory=dict)
    version: Version | None = None
    winner: Blob | None = None
    released: list[str] = field(default_factory=list)

    @property
    def served(self) -> Version | None:
        """The version that a GET serves: the newest pending, failed or stored one."""
        return max(
            (version for version in self.versions.values() if version.state in SERVED),
            key=lambda version: version.generation,
            default=None,
        )

    @property
    def stored(self) -> Version | None:
        """The version whose blob it refers to, if one is stored."""
        for version in self.versions.values():
            if version.state == VersionState.STORED:
                return version
        return None

    def unfinished(self, *, below_generation: int) -> list[Version]:
        """Return the versions of older generations that are not done, by id."""
        return [
            version
            for _, version in sorted(self.versions.items())
            if version.state in UNFINISHED and version.generation < below_generation
        ]

    def blob_of(self, version: Version) -> Blob:
        """Return the locked blob of one of the versions."""
        return self.blobs[version.blob_id]

    def the_version(self) -> Version:
        """Return the version that was named when the key was locked."""
        if self.version is None:
            raise LookupError("no version was named")
        return self.version


def share_bucket(session: Session, bucket_id: int) -> Bucket:
    """Keep a bucket from being deleted or changed until the end of the transaction.

    Writers of objects share this lock. Raises NotFoundError (`bucket_not_found`).
    """
    bucket = session.scalars(
        sa.select(Bucket)
        .where(Bucket.id == bucket_id)
        .with_for_update(read=True)
        .execution_options(populate_existing=True)
    ).one_or_none()
    if bucket is None:
        raise NotFoundError("there is no such bucket", code="bucket_not_found")
    return bucket


def keep_bucket(session: Session, version_id: int) -> None:
    """Share the lock of a version's bucket, if both are there, before the version's key.

    Nobody deletes the bucket or changes its rules while something in it begins to live.
    """
    bucket_id = session.scalar(sa.select(Version.bucket_id).where(Version.id == version_id))
    if bucket_id is not None:
        with contextlib.suppress(NotFoundError):
            share_bucket(session, bucket_id)


def lock_key(
    session: Session,
    bucket_id: int,
    key: str,
    *,
    create: bool,
    content: Content | None = None,
    blocked: bool = False,
) -> LockedKey | None:
    """Lock a key's object row (made when missing and `create`), living versions and their blobs.

    With `content`, also the blob that holds its live slot, as `winner`; with `blocked`, also the
    versions that only a failure has blocked. None when the object is missing and not to be made.
    """
    where = (ObjectRow.bucket_id == bucket_id, ObjectRow.key == key)
    locked = _lock_object(session, *where)
    if locked is None:
        if not create:
            return None
        insert_object(session, bucket_id, key)
        locked = _lock_object(session, *where)
        if locked is None:
            raise LookupError("the object row vanished under its own insert")
    _lock_versions(session, locked, extra=_retryable_ids(session, locked) if blocked else ())
    winner_id = None if content is None else _live_blob_id(session, content)
    _lock_version_blobs(session, locked, extra=[] if winner_id is None else [winner_id])
    if winner_id is not None:
        found = locked.blobs.get(winner_id)
        if found is not None and found.state in (BlobState.LIVE, BlobState.CONDEMNED):
            locked.winner = found
    return locked


def lock_version(
    session: Session, version_id: int, *, content: bool = False, task_id: int | None = None
) -> LockedKey:
    """Lock the object of a version, its living versions, this one, and their blobs.

    With `content`, also the blob that holds the live slot of its content, as `winner`, or when none
    does every staged blob of that content: two uploads of one content then wait for each other
    before either becomes live.
    With `task_id` (the task whose row the caller locks next) also the task rows of older unfinished
    versions, together with that one by ascending id. Raises NotFoundError (`version_not_found`).
    """
    object_id = session.scalar(sa.select(Version.object_id).where(Version.id == version_id))
    locked = None if object_id is None else _lock_object(session, ObjectRow.id == object_id)
    if locked is None:
        raise NotFoundError("there is no such version", code="version_not_found")
    _lock_versions(session, locked, extra=[version_id])
    version = locked.version = locked.versions[version_id]
    if content:
        _lock_content(
            session, locked, Content(version.tenant_id, version.sha256, version.size_bytes)
        )
    else:
        _lock_version_blobs(session, locked, extra=[])
    if task_id is not None:
        older = locked.unfinished(below_generation=version.generation)
        lock_tasks(session, [task_id, *(v.task_id for v in older if v.task_id is not None)])
    return locked


def lock_blobs(session: Session, blob_ids: Iterable[int]) -> dict[int, Blob]:
    """Lock blobs by ascending id; those that are not there are left out."""
    return lock_rows(session, Blob, blob_ids)


def lock_tasks(session: Session, task_ids: Iterable[int]) -> None:
    """Lock task rows by ascending id, after all domain rows."""
    ids = sorted(set(task_ids))
    if not ids:
        return
    statement = sa.select(tasks.c.id).where(tasks.c.id.in_(ids)).order_by(tasks.c.id)
    for dialect in ("mysql", "mariadb"):
        statement = statement.with_hint(tasks, _BY_PRIMARY, dialect)
    session.execute(statement.with_for_update()).all()


def _lock_object(session: Session, *where: sa.ColumnElement[bool]) -> LockedKey | None:
    found = session.execute(
        sa.select(ObjectRow, utc_clock())
        .where(*where)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one_or_none()
    return None if found is None else LockedKey(row=found[0], now=found[1])


def insert_object(session: Session, bucket_id: int, key: str) -> None:
    """Make a key's object row unless it is there."""
    values = {"bucket_id": bucket_id, "object_key": key, "created_at": utc_clock()}
    if session.get_bind().dialect.name == "sqlite":
        session.execute(sqlite.insert(_OBJECTS).values(values).on_conflict_do_nothing())
        return
    # Not INSERT IGNORE: of a row that another has just inserted it takes a shared lock, and two
    # losers that both want the exclusive one next are a deadlock.
    insert = mysql.insert(_OBJECTS).values(values)
    session.execute(insert.on_duplicate_key_update(generation=_OBJECTS.c.generation))


def _lock_versions(
    session: Session,
    locked: LockedKey,
    *,
    extra: Iterable[int] = (),
) -> None:
    if locked.row.generation == 0:
        return  # Just made: nothing was ever written under this key.
    ids = set(
        session.scalars(
            sa.select(Version.id).where(
                Version.object_id == locked.row.id, Version.state.in_(sorted(LIVING))
            )
        )
    )
    locked.versions = lock_rows(session, Version, {*ids, *extra})


def _retryable_ids(session: Session, locked: LockedKey) -> Sequence[int]:
    """Return the blocked versions whose review may be tried again: their blobs were kept."""
    return session.scalars(
        sa.select(Version.id)
        .join(Blob, Blob.id == Version.blob_id)
        .where(
            Version.object_id == locked.row.id,
            Version.state == VersionState.BLOCKED,
            Blob.state == BlobState.STAGED,
        )
    ).all()


def _lock_version_blobs(session: Session, locked: LockedKey, *, extra: Iterable[int]) -> None:
    own = (version.blob_id for version in locked.versions.values())
    locked.blobs = lock_blobs(session, {*own, *extra})


def _lock_content(session: Session, locked: LockedKey, content: Content) -> None:
    winner_id = _live_blob_id(session, content)
    # Of any two uploads one sees the other's staged blob, because both were committed before; they
    # meet at its lock, and the second then finds the first one live.
    extra = _content_ids(session, content) if winner_id is None else [winner_id]
    _lock_version_blobs(session, locked, extra=extra)
    locked.winner = _lock_live_blob(session, content)
    if locked.winner is None and winner_id is not None:
        # It went between the look and the lock.
        locked.blobs |= lock_blobs(session, _content_ids(session, content))
        locked.winner = _lock_live_blob(session, content)
    if locked.winner is not None:
        locked.blobs[locked.winner.id] = locked.winner


def lock_rows(session: Session, entity: type[_Row], ids: Iterable[int]) -> dict[int, _Row]:
    """Lock rows of one table by ascending id, and read them anew; what is not there is left out."""
    wanted = sorted(set(ids))
    if not wanted:
        return {}
    statement = sa.select(entity).where(entity.id.in_(wanted)).order_by(entity.id)
    for dialect in ("mysql", "mariadb"):
        statement = statement.with_hint(entity, _BY_PRIMARY, dialect)
    rows = session.scalars(
        statement.with_for_update().execution_options(populate_existing=True)
    ).all()
    return {row.id: row for row in rows}


def _same_content(content: Content) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        Blob.tenant_id == content.tenant_id,
        Blob.sha256 == content.sha256,
        Blob.size_bytes == content.size_bytes,
    )


def _live_blob_id(session: Session, content: Content) -> int | None:
    return session.scalar(sa.select(Blob.id).where(*_same_content(content), Blob.live_slot == 1))


def _content_ids(session: Session, content: Content) -> list[int]:
    return list(
        session.scalars(
            sa.select(Blob.id).where(*_same_content(content), Blob.state.in_(_CONTENT_STATES))
        )
    )


def _lock_live_blob(session: Session, content: Content) -> Blob | None:
    return session.scalars(
        sa.select(Blob)
        .where(*_same_content(content), Blob.live_slot == 1)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one_or_none()
