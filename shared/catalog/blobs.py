"""References to blobs, and what happens to a blob when the last one goes.

Every function here expects the blob to be locked by this transaction (`shared.catalog.locking`).
"""

from __future__ import annotations

from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.context import Catalogue
from shared.catalog.models import (
    Blob,
    BlobRef,
    BlobState,
    HolderKind,
    Location,
    utc_clock,
    utc_now,
)
from shared.catalog.payloads import DELETE_BLOB, DeleteBlob
from shared.catalog.places import is_good
from shared.catalog.regions import region_of_content
from shared.core.errors import ConflictError


def add_reference(session: Session, blob: Blob, holder_kind: HolderKind, holder_id: int) -> None:
    """Let a holder refer to a live or condemned blob; a condemned one lives again.

    Raises ConflictError (`blob_not_live`) for a blob that is being deleted or was never stored.
    """
    if blob.state == BlobState.CONDEMNED:
        # The delete task of this condemnation meets a live blob and ends well.
        blob.state = BlobState.LIVE
        blob.delete_after = None
    elif blob.state != BlobState.LIVE:
        raise ConflictError(
            "the content is not stored", code="blob_not_live", blob_id=blob.id, state=blob.state
        )
    session.add(
        BlobRef(
            blob_id=blob.id, holder_kind=holder_kind, holder_id=holder_id, created_at=utc_clock()
        )
    )
    session.flush()


def drop_reference(
    session: Session, catalogue: Catalogue, blob: Blob, holder_kind: HolderKind, holder_id: int
) -> int | None:
    """Remove a holder's reference; without any left, condemn the blob.

    Returns the id of the delete task that was enqueued, due after the grace. A reference that is
    not there changes nothing.
    """
    session.flush()
    gone = session.execute(
        sa.delete(BlobRef)
        .where(
            BlobRef.blob_id == blob.id,
            BlobRef.holder_kind == holder_kind,
            BlobRef.holder_id == holder_id,
        )
        .execution_options(synchronize_session=False)
    )
    if (
        not cast("sa.CursorResult[Any]", gone).rowcount
        or blob.state != BlobState.LIVE
        or has_references(session, blob.id)
    ):
        return None
    return condemn(session, catalogue, blob)


def condemn(session: Session, catalogue: Catalogue, blob: Blob) -> int | None:
    """Condemn a live blob that nobody refers to; returns the delete task, due after the grace.

    The generation grows, so that the task of an earlier condemnation finds itself outdated. Where
    nobody serves deletions there is no task: the blob waits for a deployment that does.
    """
    blob.state = BlobState.CONDEMNED
    blob.generation += 1
    blob.delete_after = utc_now(catalogue.grace_seconds)
    session.flush()
    return enqueue_delete(session, catalogue, blob, delay_seconds=catalogue.grace_seconds)


def dispose_staged(session: Session, catalogue: Catalogue, blob: Blob) -> int | None:
    """Give up a blob that never came live: its version is over, or its content exists already.

    With a location row, bytes may be or arrive on a channel: `deleting`, owned by a delete task
    whose id is returned. Without one it is deleted at once: whoever writes an intent locks the
    blob first and finds it gone. A blob in any other state is left alone.
    """
    if blob.state != BlobState.STAGED:
        return None
    is_named = _has_locations(session, blob.id)
    blob.generation += 1
    if not is_named:
        blob.state = BlobState.DELETED
        blob.deleted_at = utc_clock()
        session.flush()
        return None
    blob.state = BlobState.DELETING
    session.flush()
    # Without a task it has no owner, and the sweep gives it one where deletions are served.
    blob.delete_owner = enqueue_delete(session, catalogue, blob, delay_seconds=0.0)
    session.flush()
    return blob.delete_owner


def has_references(session: Session, blob_id: int) -> bool:
    """Tell whether anybody refers to a blob."""
    return session.scalar(sa.select(sa.exists().where(BlobRef.blob_id == blob_id))) is True


def has_stored_location(session: Session, blob_id: int) -> bool:
    """Tell whether a verified copy of the blob is on a channel, and not known to be lost.

    Without one its content must be sent again, however often it was stored before.
    """
    found = sa.exists().where(Location.blob_id == blob_id, is_good())
    return session.scalar(sa.select(found)) is True


def _has_locations(session: Session, blob_id: int) -> bool:
    return session.scalar(sa.select(sa.exists().where(Location.blob_id == blob_id))) is True


def enqueue_delete(
    session: Session, catalogue: Catalogue, blob: Blob, *, delay_seconds: float
) -> int | None:
    """Enqueue the delete task of a blob's present generation, unless one is under way; its id.

    None where this deployment serves no deletions.
    """
    if not catalogue.serves("delete"):
        return None
    enqueued = catalogue.tasks.enqueue(
        session,
        DELETE_BLOB,
        DeleteBlob(blob_id=blob.id, generation=blob.generation),
        tenant_id=blob.tenant_id,
        region=region_of_content(session, blob.id, "delete"),
        delay_seconds=delay_seconds,
        dedupe_key=f"blob:{blob.id}:{blob.generation}",
    )
    return enqueued.id
