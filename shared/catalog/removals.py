"""Deletion of all keys with a prefix, as they were at the request: pages, their commits, the end.

The row keeps how far it got: whoever goes on begins behind `cursor`, and nothing counts twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.context import Catalogue
from shared.catalog.deletes import end_living
from shared.catalog.holds import held
from shared.catalog.listing import under
from shared.catalog.locking import LockedKey, lock_tasks, share_bucket
from shared.catalog.many_keys import lock_keys
from shared.catalog.models import (
    LIVING,
    Bucket,
    ObjectRow,
    Removal,
    RemovalState,
    Version,
    VersionState,
    by_index,
    utc_clock,
)
from shared.catalog.models.base import MAX_KEY_BYTES
from shared.catalog.object_copies import outrun_copies
from shared.catalog.origins.outrunning import outrun
from shared.catalog.payloads import DELETE_PREFIX, DeletePrefix
from shared.catalog.regions import region_of
from shared.catalog.uploading.arriving import end_arriving_under
from shared.core.errors import InvalidError, NotFoundError, SupersededError

#: Object rows that one look reads; most may be names of what was deleted long ago.
LOOK_ROWS = 500


class Named(NamedTuple):
    """A key that may have something to delete."""

    object_id: int
    key: str


@dataclass(frozen=True, slots=True)
class Look:
    """What one look found. `last` is the last key that was read, None at the end of the walk."""

    keys: Sequence[Named]
    last: str | None


def start_removal(
    session: Session,
    catalogue: Catalogue,
    bucket: Bucket,
    *,
    prefix: str,
    is_dry_run: bool = False,
    by: str = "",
) -> Removal:
    """Write a removal and its task. Content that is written after the commit is not deleted.

    What was asked for before and has no version yet (a pull, a copy over channels, an upload whose
    parts are being joined) does not arrive. Raises InvalidError (`prefix_invalid`) and
    SwitchedOffError.
    """
    catalogue.need("delete")
    _check_prefix(prefix)
    arriving: list[int] = []
    if not is_dry_run:
        outrun(session, bucket.id, prefix)
        arriving = end_arriving_under(session, bucket, prefix)
        outrun_copies(session, bucket.id, prefix)
    removal = Removal(
        tenant_id=bucket.tenant_id,
        bucket_id=bucket.id,
        prefix=prefix,
        is_dry_run=int(is_dry_run),
        state=RemovalState.RUNNING,
        # Every version that was acknowledged before has a smaller id, every later one a larger.
        newest_version_id=session.scalar(sa.select(sa.func.max(Version.id))) or 0,
        created_by=by,
        created_at=utc_clock(),
    )
    session.add(removal)
    session.flush()
    enqueued = catalogue.tasks.enqueue(
        session,
        DELETE_PREFIX,
        DeletePrefix(removal_id=removal.id),
        tenant_id=bucket.tenant_id,
        region=region_of(session, bucket, "delete"),
    )
    removal.task_id = enqueued.id
    session.flush()
    if arriving:
        catalogue.tasks.supersede(session, sorted(arriving))
    session.refresh(removal)
    return removal


def find_removal(session: Session, bucket_id: int, removal_id: int) -> Removal:
    """Return a removal of a bucket. Raises NotFoundError (`removal_not_found`)."""
    removal = session.get(Removal, removal_id)
    if removal is None or removal.bucket_id != bucket_id:
        raise NotFoundError("there is no such removal", code="removal_not_found")
    return removal


def look(session: Session, removal: Removal, *, after: str | None) -> Look:
    """Find keys behind `after` that have something to delete, from one page of object rows.

    What is in review counts as well: it must not appear later.
    """
    statement = sa.select(ObjectRow.id, ObjectRow.key).where(
        ObjectRow.bucket_id == removal.bucket_id,
        *under(ObjectRow.key, removal.prefix, after=after),
    )
    statement = by_index(statement, ObjectRow, "uq_objects_key")
    rows = session.execute(statement.order_by(ObjectRow.key).limit(LOOK_ROWS)).all()
    living = set(
        session.scalars(
            sa.select(Version.object_id).where(
                Version.object_id.in_([row.id for row in rows]),
                Version.state.in_(sorted({*LIVING, VersionState.BLOCKED})),
            )
        )
    )
    keys = [Named(row.id, row.key) for row in rows if row.id in living]
    return Look(keys, rows[-1].key if len(rows) == LOOK_ROWS else None)


class PageCommit:
    """The commit of one page of keys: `lock` takes the domain rows, `apply` writes."""

    def __init__(
        self,
        catalogue: Catalogue,
        *,
        removal_id: int,
        keys: Sequence[Named],
        after: str | None,
        task_id: int,
    ) -> None:
        self._catalogue = catalogue
        self._removal_id = removal_id
        self._named = keys
        self._after = after
        self._task_id = task_id
        self._keys: dict[int, LockedKey] = {}

    @property
    def released(self) -> list[str]:
        """The staging files that nobody needs any more, once it is committed."""
        return [key for locked in self._keys.values() for key in locked.released]

    def lock(self, session: Session) -> None:
        """Lock bucket, keys, the removal, and with this task's row those of what it may end."""
        removal = _read(session, self._removal_id)
        try:
            share_bucket(session, removal.bucket_id)
        except NotFoundError as error:
            raise SupersededError("the bucket is gone", removal_id=removal.id) from error
        self._keys = lock_keys(session, [one.object_id for one in self._named], blocked=True)
        removal = lock_removal(session, self._removal_id)
        versions = (v for locked in self._keys.values() for v in locked.versions.values())
        ended = (v.task_id for v in versions if v.id <= removal.newest_version_id)
        lock_tasks(session, [self._task_id, *(task_id for task_id in ended if task_id is not None)])

    def apply(self, session: Session) -> Removal:
        """Delete what may be deleted, count it, and move the cursor to the page's last key."""
        removal = _read(session, self._removal_id)
        if removal.state != RemovalState.RUNNING or removal.cursor != self._after:
            raise SupersededError("the removal is elsewhere", removal_id=removal.id)
        stored = (locked.stored for locked in self._keys.values())
        kept = held(session, [version.id for version in stored if version is not None])
        superseded: list[int] = []
        counts: Counter[str] = Counter()
        for _, locked in sorted(self._keys.items()):
            superseded += self._remove(session, removal, locked, kept, counts)
        for name, count in counts.items():
            setattr(removal, name, getattr(removal, name) + count)
        removal.cursor = self._named[-1].key
        session.flush()
        if superseded:
            self._catalogue.tasks.supersede(session, sorted(superseded))
        return removal

    def _remove(
        self,
        session: Session,
        removal: Removal,
        locked: LockedKey,
        kept: set[int],
        counts: Counter[str],
    ) -> list[int]:
        newest, served, stored = removal.newest_version_id, locked.served, locked.stored
        if stored is not None and stored.id <= newest and stored.id in kept:
            counts["held_keys"] += 1
            return []
        living = [version for version in locked.versions.values() if version.state in LIVING]
        if any(version.id > newest for version in living):
            counts["newer_keys"] += 1
        elif living:
            counts["deleted_keys"] += 1
            counts["deleted_bytes"] += 0 if served is None else served.size_bytes
        if removal.is_dry_run:
            return []
        ended = end_living(session, self._catalogue, locked, newest_version_id=newest)
        return [] if ended is None else ended.superseded


def finish_removal(session: Session, removal_id: int, *, state: RemovalState) -> Removal:
    """End a removal that runs; the caller has locked it. One that has ended is left alone."""
    removal = _read(session, removal_id)
    if removal.state == RemovalState.RUNNING:
        removal.state = state
        removal.ended_at = utc_clock()
        session.flush()
        session.refresh(removal)
    return removal


def lock_removal(session: Session, removal_id: int) -> Removal:
    """Lock a removal's row, after all objects and blobs. Raises SupersededError if it is gone."""
    removal = session.get(Removal, removal_id, with_for_update=True, populate_existing=True)
    if removal is None:
        raise SupersededError("the removal is gone", removal_id=removal_id)
    return removal


def _read(session: Session, removal_id: int) -> Removal:
    removal = session.get(Removal, removal_id)
    if removal is None:
        raise SupersededError("the removal is gone", removal_id=removal_id)
    return removal


def _check_prefix(prefix: str) -> None:
    try:
        size = len(prefix.encode())
    except UnicodeEncodeError as error:
        raise InvalidError("the prefix is not valid Unicode", code="prefix_invalid") from error
    if size > MAX_KEY_BYTES:
        raise InvalidError(
            f"a prefix has at most {MAX_KEY_BYTES} bytes of UTF-8", code="prefix_invalid"
        )
