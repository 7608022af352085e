"""Plans copies: a replica row and its task, in the transaction that makes them needed.

Every function here expects the blob to be live and locked by this transaction; its lock guards the
blob's replica rows.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.context import Catalogue
from shared.catalog.models import Blob, Bucket, Location, Replica, ReplicaState, utc_clock
from shared.catalog.payloads import REPLICA_COPY, REPLICA_REPAIR, CopyReplica
from shared.catalog.places import stored_on
from shared.catalog.regions import region_of

#: The queue of all this work.
QUEUE = "replica"


def plan_bucket(session: Session, catalogue: Catalogue, bucket: Bucket | None, blob: Blob) -> None:
    """Plan the copies that a bucket asks for of a content that has just become its own."""
    if bucket is None:
        return
    for channel in bucket.replica_channels or ():
        ensure(session, catalogue, blob, channel, region=region_of(session, bucket, QUEUE))


def ensure(
    session: Session, catalogue: Catalogue, blob: Blob, channel: str, *, region: str
) -> bool:
    """See that a copy on the channel is there or under way; tells whether a task was made.

    Nothing is planned while this deployment does not serve replicas: the job does so later.
    """
    if not catalogue.serves(QUEUE):
        return False
    row = find(session, blob.id, channel)
    if row is not None and row.state == ReplicaState.PENDING:
        return False
    place = stored_on(session, blob.id, channel)
    if row is None:
        row = _new(session, blob, channel)
    if place is not None:
        complete(row, place)
        session.flush()
        return False
    _begin(session, catalogue, row, region=region, kind=REPLICA_COPY)
    return True


def repair(
    session: Session, catalogue: Catalogue, blob: Blob, lost: Location, *, region: str
) -> bool:
    """Plan a fresh copy in the place of a lost location; tells whether a task was made.

    The lost one stays stored until the new one is: a wrong finding then costs a copy, no content.
    """
    if not catalogue.serves(QUEUE):
        return False
    row = find(session, blob.id, lost.channel)
    if row is None:
        row = _new(session, blob, lost.channel)
    elif row.lost_location_id == lost.id and row.state == ReplicaState.PENDING:
        return False
    is_under_way = row.state == ReplicaState.PENDING and row.task_id is not None
    row.lost_location_id = lost.id
    row.losses = (row.losses or 0) + 1
    if is_under_way:
        row.updated_at = utc_clock()
        session.flush()
        return False
    _begin(session, catalogue, row, region=region, kind=REPLICA_REPAIR)
    return True


def anew(session: Session, catalogue: Catalogue, row: Replica, *, region: str) -> bool:
    """Give a row of a locked, live blob a new task, unless its copy is there; tells whether."""
    place = stored_on(session, row.blob_id, row.channel, besides=row.lost_location_id)
    if place is not None and row.lost_location_id is None:
        complete(row, place)
        session.flush()
        return False
    is_repair = row.lost_location_id is not None
    kind = REPLICA_REPAIR if is_repair else REPLICA_COPY
    _begin(session, catalogue, row, region=region, kind=kind)
    return True


def find(session: Session, blob_id: int, channel: str) -> Replica | None:
    """Return the replica row of a locked blob on a channel."""
    return session.scalars(
        sa.select(Replica)
        .where(Replica.blob_id == blob_id, Replica.channel == channel)
        .execution_options(populate_existing=True)
    ).one_or_none()


def known_losses(session: Session, blob_id: int) -> list[int]:
    """Return the blob's locations that are known to be lost and wait for their repair."""
    found = session.scalars(
        sa.select(Replica.lost_location_id).where(
            Replica.blob_id == blob_id, Replica.lost_location_id.is_not(None)
        )
    )
    return [location_id for location_id in found if location_id is not None]


def complete(row: Replica, location_id: int) -> None:
    """Note that the copy is there."""
    row.state, row.reason = ReplicaState.COMPLETED, ""
    row.location_id, row.lost_location_id = location_id, None
    row.error_code = row.error_detail = None
    row.completed_at = row.updated_at = utc_clock()


def let_go(row: Replica, reason: str) -> None:
    """Note that the copy is not asked for any more."""
    row.state, row.reason = ReplicaState.GONE, reason
    row.lost_location_id = None
    row.updated_at = utc_clock()


def _new(session: Session, blob: Blob, channel: str) -> Replica:
    row = Replica(
        tenant_id=blob.tenant_id,
        blob_id=blob.id,
        channel=channel,
        state=ReplicaState.PENDING,
        created_at=utc_clock(),
        updated_at=utc_clock(),
    )
    session.add(row)
    session.flush()
    return row


def _begin(session: Session, catalogue: Catalogue, row: Replica, *, region: str, kind: str) -> None:
    row.state, row.reason = ReplicaState.PENDING, ""
    row.location_id = row.completed_at = None
    row.updated_at = utc_clock()
    session.flush()
    row.task_id = catalogue.tasks.enqueue(
        session,
        kind,
        CopyReplica(replica_id=row.id, blob_id=row.blob_id),
        tenant_id=row.tenant_id,
        region=region,
        dedupe_key=f"replica:{row.id}",
    ).id
    session.flush()
