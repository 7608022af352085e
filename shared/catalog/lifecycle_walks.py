"""A change of a bucket's lifecycle rules, brought to the objects that are there already.

Each page is a transaction of its own and moves the walk's cursor; several processes may walk at
once, and a rule that changes again begins anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.expiries import change_expiry, due
from shared.catalog.lifecycle import Lifecycle
from shared.catalog.locking import lock_rows, share_bucket
from shared.catalog.models import (
    LIVING,
    Bucket,
    Expiry,
    LifecycleWalk,
    ObjectRow,
    Version,
    by_index,
    utc_clock,
)
from shared.core.errors import NotFoundError

#: Object rows of one page; their locks last for some tens of milliseconds.
PAGE_ROWS = 100
_NO_RULES = Lifecycle().revision


def begin_walk(session: Session, bucket: Bucket) -> None:
    """Let all objects of a locked bucket hear of its rules, which have changed."""
    revision = revision_of(bucket)
    walk = session.get(LifecycleWalk, bucket.id, with_for_update=True, populate_existing=True)
    if walk is None:
        session.add(LifecycleWalk(bucket_id=bucket.id, revision=revision, created_at=utc_clock()))
    else:
        walk.revision, walk.cursor, walk.created_at = revision, None, utc_clock()
    session.flush()


def end_walk(session: Session, bucket_id: int) -> None:
    """Forget the walk of a bucket."""
    session.execute(sa.delete(LifecycleWalk).where(LifecycleWalk.bucket_id == bucket_id))


def revision_of(bucket: Bucket) -> str:
    """Return a name for a bucket's rules."""
    if bucket.lifecycle is None:
        return _NO_RULES
    return Lifecycle.model_validate(bucket.lifecycle).revision


def open_walks(session: Session, *, limit: int) -> Sequence[int]:
    """Return the ids of buckets whose objects have not all heard of the rules."""
    return session.scalars(
        sa.select(LifecycleWalk.bucket_id).order_by(LifecycleWalk.bucket_id).limit(limit)
    ).all()


def walk_page(session: Session, bucket_id: int) -> bool:
    """Bring the rules to the next page of a bucket's objects; False at the end of the walk."""
    try:
        bucket = share_bucket(session, bucket_id)
    except NotFoundError:
        end_walk(session, bucket_id)
        return False
    seen = session.get(LifecycleWalk, bucket_id)
    if seen is None:
        return False
    after = seen.cursor
    rows = _page(session, bucket_id, after)
    objects = lock_rows(session, ObjectRow, (object_id for object_id, _ in rows))
    walk = session.get(LifecycleWalk, bucket_id, with_for_update=True, populate_existing=True)
    if walk is None or walk.cursor != after:
        return walk is not None  # Another process was faster.
    _tell(session, bucket, objects)
    if len(rows) < PAGE_ROWS:
        session.delete(walk)
        session.flush()
        return False
    walk.cursor = rows[-1][1]
    session.flush()
    return True


def _tell(session: Session, bucket: Bucket, objects: dict[int, ObjectRow]) -> None:
    """Compute anew when the living versions of locked objects expire."""
    versions = session.scalars(
        sa.select(Version)
        .where(Version.object_id.in_(sorted(objects)), Version.state.in_(sorted(LIVING)))
        .order_by(Version.id)
        .execution_options(populate_existing=True)
    ).all()
    ids = [version.id for version in versions]
    # Whoever writes one of these holds the object's lock.
    rows = session.scalars(sa.select(Expiry).where(Expiry.version_id.in_(ids)))
    known = {row.version_id: row for row in rows}
    for version in versions:
        row = known.get(version.id)
        own_at = None if row is None else row.own_at
        key = objects[version.object_id].key
        if due(bucket, key, version, own_at) != (None if row is None else row.due_at):
            change_expiry(session, bucket, key, version, own_at)


def _page(session: Session, bucket_id: int, after: str | None) -> list[tuple[int, str]]:
    key = sa.type_coerce(ObjectRow.key, sa.LargeBinary)
    statement = sa.select(ObjectRow.id, ObjectRow.key).where(ObjectRow.bucket_id == bucket_id)
    if after is not None:
        statement = statement.where(key > after.encode())
    statement = by_index(statement, ObjectRow, "uq_objects_key")
    rows = session.execute(statement.order_by(ObjectRow.key).limit(PAGE_ROWS))
    return [(row.id, row.key) for row in rows]
