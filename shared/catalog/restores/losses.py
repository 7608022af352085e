"""Losses: stored locations whose bytes were found missing or damaged, each with its task."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.context import Catalogue
from shared.catalog.locking import lock_blobs
from shared.catalog.models import (
    Blob,
    BlobState,
    Location,
    LocationState,
    Loss,
    LossState,
    utc_clock,
    utc_now,
)
from shared.catalog.payloads import RESTORE_BLOB, RestoreBlob
from shared.catalog.places import LOST, lock_location
from shared.catalog.regions import region_of_content

#: Seconds after which a loss that nothing could help with is tried again.
AGAIN_SECONDS = 24 * 3600.0


class FoundBy(StrEnum):
    """Who has met a loss."""

    READ = "read"
    AUDIT = "audit"
    OPERATOR = "operator"
    BACKUP = "backup"
    REPLICA = "replica"
    RESTORE = "restore"


#: Where a content came from that a user has sent again: no backup was read.
SENT_AGAIN = "upload"


@dataclass(frozen=True, slots=True)
class LossesOf:
    """The losses of a locked blob that nobody has found right again, locked with their locations.

    A tender of one that is ended here finds that out by itself.
    """

    losses: tuple[Loss, ...]

    @classmethod
    def lock(cls, session: Session, blob_id: int, *, besides: int) -> LossesOf:
        """Lock the lost locations together with the location `besides`, then the losses."""
        # The blob's lock keeps the rest of the world from opening or ending one.
        found = session.execute(
            sa.select(Loss.id, Loss.location_id)
            .join(Location, Location.id == Loss.location_id)
            .where(Location.blob_id == blob_id, Loss.state.in_(LOST))
            .order_by(Loss.id)
        ).all()
        for location_id in sorted({besides, *(row.location_id for row in found)}):
            lock_location(session, location_id)
        locked = (lock_loss(session, row.id) for row in found)
        return cls(tuple(one for one in locked if one is not None))

    def end(self, session: Session, location: Location) -> None:
        """Let a proven location that has just become the blob's own take the place of the lost."""
        for loss in self.losses:
            lost = session.get(Location, loss.location_id)
            if lost is not None and lost.state == LocationState.STORED:
                # What is left of its bytes is the sweep's.
                lost.state, lost.condemned_at = LocationState.CONDEMNED, utc_clock()
            end_loss(loss, LossState.RESTORED)
            loss.restored_from, loss.restored_location_id = SENT_AGAIN, location.id
        session.flush()


def report_loss(
    session: Session,
    catalogue: Catalogue,
    *,
    location_id: int,
    found_by: FoundBy,
    detail: str = "",
) -> int | None:
    """Record that a stored location's bytes are not what they should be, with a task to restore.

    Opens nothing for a location that is not stored any more or whose blob is not live: it went its
    ordinary way. Returns the loss's id, also of one that is open already. Where restores are
    switched off there is a row and no task. The caller holds no lock of a later table.
    """
    blob_id = session.scalar(sa.select(Location.blob_id).where(Location.id == location_id))
    blob = None if blob_id is None else lock_blobs(session, [blob_id]).get(blob_id)
    location = session.scalars(
        sa.select(Location)
        .where(Location.id == location_id)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one_or_none()
    if (
        blob is None
        or blob.state != BlobState.LIVE
        or location is None
        or location.state != LocationState.STORED
    ):
        return None
    # Nobody else inserts one meanwhile: the location's lock is held.
    loss = session.scalars(sa.select(Loss).where(Loss.location_id == location_id)).one_or_none()
    if loss is not None:
        loss = lock_loss(session, loss.id)
    if loss is None:
        loss = Loss(
            tenant_id=blob.tenant_id,
            blob_id=blob.id,
            location_id=location.id,
            channel=location.channel,
            state=LossState.OPEN,
            round=1,
            found_by=found_by,
            detail=detail[:512],
            created_at=utc_clock(),
        )
        session.add(loss)
        session.flush()
    elif loss.state == LossState.OPEN:
        give_task(session, catalogue, loss)
        return loss.id
    else:
        reopen(session, loss)
        loss.found_by, loss.detail = found_by, detail[:512]
    give_task(session, catalogue, loss)
    return loss.id


def lock_loss(session: Session, loss_id: int) -> Loss | None:
    """Lock a loss and read it anew; None when it is not there."""
    return session.scalars(
        sa.select(Loss)
        .where(Loss.id == loss_id)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one_or_none()


def lock_blob_and_loss(session: Session, loss_id: int) -> tuple[Blob | None, Loss | None]:
    """Lock a loss's blob, then the loss."""
    blob_id = session.scalar(sa.select(Loss.blob_id).where(Loss.id == loss_id))
    blob = None if blob_id is None else lock_blobs(session, [blob_id]).get(blob_id)
    return blob, lock_loss(session, loss_id)


def reopen(session: Session, loss: Loss) -> None:
    """Open a locked loss again: another round, with another task."""
    loss.state, loss.error_code, loss.ended_at = LossState.OPEN, None, None
    loss.task_id = None
    loss.round += 1
    session.flush()


def give_task(session: Session, catalogue: Catalogue, loss: Loss) -> None:
    """Enqueue the task of a locked open loss, unless it has one or nobody serves restores."""
    if loss.task_id is not None or not catalogue.serves("restore"):
        return
    loss.task_id = catalogue.tasks.enqueue(
        session,
        RESTORE_BLOB,
        RestoreBlob(loss_id=loss.id),
        tenant_id=loss.tenant_id,
        region=region_of_content(session, loss.blob_id, "restore"),
        dedupe_key=f"loss:{loss.id}:{loss.round}",
    ).id
    session.flush()


def end_loss(loss: Loss, state: LossState, *, code: str | None = None) -> None:
    """End a locked open loss."""
    loss.state, loss.error_code, loss.ended_at = state, code, utc_clock()


def losses_to_try(session: Session, *, limit: int) -> list[int]:
    """Return losses without a task, and hopeless ones that were not tried for a day."""
    waiting = sa.and_(Loss.state == LossState.OPEN, Loss.task_id.is_(None))
    hopeless = sa.and_(
        Loss.state.in_((LossState.UNRECOVERABLE, LossState.FAILED)),
        Loss.ended_at <= utc_now(-AGAIN_SECONDS),
    )
    return list(
        session.scalars(
            sa.select(Loss.id).where(sa.or_(waiting, hopeless)).order_by(Loss.id).limit(limit)
        )
    )


def try_again(session: Session, catalogue: Catalogue, loss_id: int) -> None:
    """Give a loss of `losses_to_try` its task."""
    _blob, loss = lock_blob_and_loss(session, loss_id)
    if loss is None:
        return
    if loss.state in (LossState.UNRECOVERABLE, LossState.FAILED):
        reopen(session, loss)
    if loss.state == LossState.OPEN:
        give_task(session, catalogue, loss)
