"""Intents: a location row that names a fresh physical key before the first byte is sent there.

A late write of an execution that lost its task can then only ever be an orphan that a sweep finds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import (
    Blob,
    BlobState,
    ChannelRecord,
    Location,
    LocationState,
    Version,
    VersionState,
    utc_clock,
)
from shared.core.errors import SupersededError
from shared.storage.errors import ChannelUnavailable
from shared.storage.keys import fresh_key

if TYPE_CHECKING:
    from shared.outbox.execution import Execution


def begin(
    session: Session, *, version_id: int, blob_id: int, channel: str, execution: Execution
) -> Location:
    """Write an intent under a fresh key; the caller has locked the blob.

    Raises SupersededError when the version does not wait for its upload any more, and
    ChannelUnavailable when the channel was removed meanwhile.
    """
    version = session.get(Version, version_id)
    blob = session.get(Blob, blob_id)
    if (
        version is None
        or version.state != VersionState.PENDING
        or version.blob_id != blob_id
        or blob is None
        or blob.state != BlobState.STAGED
    ):
        raise SupersededError("the version does not wait for its upload", version_id=version_id)
    return _write(session, blob, channel=channel, execution=execution)


def begin_copy(session: Session, *, blob_id: int, channel: str, execution: Execution) -> Location:
    """Write an intent for one more copy of a live blob; the caller has locked the blob.

    Raises SupersededError when the blob is not live any more, and ChannelUnavailable when the
    channel was removed meanwhile.
    """
    blob = session.get(Blob, blob_id)
    if blob is None or blob.state != BlobState.LIVE:
        state = "gone" if blob is None else blob.state
        raise SupersededError(f"the blob is {state}", blob_id=blob_id)
    return _write(session, blob, channel=channel, execution=execution)


def _write(session: Session, blob: Blob, *, channel: str, execution: Execution) -> Location:
    # Shared until the commit: a channel goes either before this intent, or not at all.
    if session.get(ChannelRecord, channel, with_for_update={"read": True}) is None:
        raise ChannelUnavailable("the channel is gone", channel=channel)
    location = Location(
        blob_id=blob.id,
        channel=channel,
        key=fresh_key(blob.tenant_id),
        state=LocationState.INTENT,
        task_id=execution.task.id,
        fence=execution.fence,
        attempt=execution.task.attempt,
        created_at=utc_clock(),
    )
    session.add(location)
    session.flush()
    return location


def adopt(session: Session, location_id: int, *, execution: Execution) -> bool:
    """Take over the intent of an earlier execution of the same task, to go on with its upload.

    False when it is no intent any more: a sweep has taken it, and the key must not be used.
    """
    done = session.execute(
        sa.update(Location)
        .where(
            Location.id == location_id,
            Location.state == LocationState.INTENT,
            Location.task_id == execution.task.id,
        )
        .values(fence=execution.fence, attempt=execution.task.attempt)
        .execution_options(synchronize_session=False)
    )
    return int(done.rowcount) == 1  # type: ignore[attr-defined]


def keep_upload_id(session: Session, location_id: int, upload_id: str) -> None:
    """Keep the channel's id of an open multipart upload, so that a sweep can abort it."""
    session.execute(
        sa.update(Location)
        .where(Location.id == location_id, Location.state == LocationState.INTENT)
        .values(upload_id=upload_id)
        .execution_options(synchronize_session=False)
    )
