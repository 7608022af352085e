"""Finding what a GET or HEAD serves: the facts of the version, and where its bytes are.

Nothing is locked. Bytes may move from staging to a channel between this and the first read.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.expiries import due, own_times
from shared.catalog.limits import check_key
from shared.catalog.models import (
    Bucket,
    Location,
    LocationState,
    ObjectRow,
    Version,
    VersionState,
)
from shared.core.errors import NotFoundError


@dataclass(frozen=True, slots=True)
class Source:
    """Where bytes are: on a channel, or in staging when `channel` is None."""

    channel: str | None
    key: str
    location_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Readable:
    """A version that may be read. `sources` are tried in order, the bucket's first choice first.

    When every source is gone, find the version again: it was stored, replaced or deleted meanwhile.
    """

    version_id: int
    generation: int
    state: str
    size: int
    etag: str
    content_type: str
    sha256: str
    metadata: dict[str, str]
    modified_at: dt.datetime
    task_id: int | None
    expires_at: dt.datetime | None
    sources: tuple[Source, ...]


def open_version(session: Session, bucket: Bucket, key: str) -> Readable:
    """Return the newest generation that is pending, failed or stored.

    Versions in review or rejected are passed over. Raises NotFoundError (`object_not_found`).
    """
    check_key(key)
    # One statement, so that the object and its version are seen as of one moment.
    version = session.scalars(
        sa.select(Version)
        .join(ObjectRow, ObjectRow.served_version_id == Version.id)
        .where(ObjectRow.bucket_id == bucket.id, ObjectRow.key == key)
        .execution_options(populate_existing=True)
    ).one_or_none()
    if version is None:
        raise NotFoundError("there is no such object", code="object_not_found")
    return Readable(
        version_id=version.id,
        generation=version.generation,
        state=version.state,
        size=version.size_bytes,
        etag=version.etag,
        content_type=version.content_type,
        sha256=version.sha256,
        metadata=version.user_metadata,
        modified_at=version.created_at,
        task_id=version.task_id,
        expires_at=due(bucket, key, version, own_times(session, [version.id]).get(version.id)),
        sources=_sources(session, bucket, version),
    )


def _sources(session: Session, bucket: Bucket, version: Version) -> tuple[Source, ...]:
    if version.state != VersionState.STORED:
        return () if version.staging_key is None else (Source(None, version.staging_key),)
    rows = session.execute(
        sa.select(Location.id, Location.channel, Location.key)
        .where(Location.blob_id == version.blob_id, Location.state == LocationState.STORED)
        .order_by(Location.id)
    ).all()
    # Candidates first, then replicas; a name's first place counts.
    preferred = dict.fromkeys((*bucket.channels, *(bucket.replica_channels or ())))
    order = {name: place for place, name in enumerate(preferred)}
    rows = sorted(rows, key=lambda row: order.get(row.channel, len(order)))
    return tuple(Source(row.channel, row.key, row.id) for row in rows)
