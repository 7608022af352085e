"""One lost copy: whether it is needed, where its content may still be, and its commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.backups.held import HeldCopy, held_copies
from shared.catalog.copying import Copied, CopyCommit, CopyJob, SourceCopy
from shared.catalog.locking import lock_blobs
from shared.catalog.models import (
    Blob,
    BlobState,
    Bucket,
    Location,
    LocationState,
    Loss,
    LossState,
    Version,
    VersionState,
    utc_clock,
)
from shared.catalog.places import lock_location, stored_places
from shared.catalog.restores.losses import end_loss, lock_loss
from shared.core.errors import SupersededError


@dataclass(frozen=True, slots=True)
class LossJob:
    """What one loss needs: the lost place, and where else its bytes may be."""

    loss_id: int
    blob_id: int
    location_id: int
    channel: str
    key: str
    sha256: str
    size_bytes: int
    others: tuple[SourceCopy, ...]
    held: tuple[HeldCopy, ...]
    channels: tuple[str, ...]

    def copy(self, target: str) -> CopyJob:
        """Return the copying to a channel: from another copy, else from the newest backup on."""
        backups = tuple(SourceCopy(None, one.target, one.key) for one in self.held)
        return CopyJob(
            blob_id=self.blob_id,
            size_bytes=self.size_bytes,
            sha256=self.sha256,
            sources=(*self.others, *backups),
            target=target,
        )

    def held_as(self, source: SourceCopy) -> HeldCopy | None:
        """Return the content that a source is, None for a location."""
        for one in self.held:
            if source.location_id is None and (one.target, one.key) == (source.channel, source.key):
                return one
        return None


def read_loss(session: Session, loss_id: int) -> LossJob | None:
    """Return a loss's work, None when it has ended. Raises SupersededError when nobody waits."""
    loss = session.get(Loss, loss_id, populate_existing=True)
    if loss is None:
        raise SupersededError("the loss is gone", loss_id=loss_id)
    if loss.state != LossState.OPEN:
        return None
    blob = session.get(Blob, loss.blob_id, populate_existing=True)
    location = session.get(Location, loss.location_id, populate_existing=True)
    if blob is None or blob.state != BlobState.LIVE:
        state = "gone" if blob is None else blob.state
        raise SupersededError(f"the blob is {state}", loss_id=loss_id)
    if location is None or location.state != LocationState.STORED:
        raise SupersededError("the location is given up", loss_id=loss_id)
    others = stored_places(session, blob.id, besides=[location.id])
    return LossJob(
        loss_id=loss.id,
        blob_id=blob.id,
        location_id=location.id,
        channel=location.channel,
        key=location.key,
        sha256=blob.sha256,
        size_bytes=blob.size_bytes,
        others=tuple(SourceCopy(one.id, one.channel, one.key) for one in others),
        held=tuple(
            held_copies(session, blob.tenant_id, blob.sha256, blob.size_bytes, with_damaged=True)
        ),
        channels=_channels(session, blob.id, location.channel),
    )


def _channels(session: Session, blob_id: int, lost: str) -> tuple[str, ...]:
    """Return where the content may be restored to: where it was, else where its buckets store."""
    names = [lost]
    listed: Sequence[list[str]] = session.scalars(
        sa.select(Bucket.channels)
        .join(Version, Version.bucket_id == Bucket.id)
        .where(Version.blob_id == blob_id, Version.state == VersionState.STORED)
        .limit(10)
    ).all()
    for channels in listed:
        names += [name for name in channels if name not in names]
    return tuple(names)


class LossCommit:
    """The commit of a restored copy: the lost location goes, the new one takes its place.

    `current` of no object moves: the blob is the same.
    """

    def __init__(self, job: LossJob, target: str, copied: Copied) -> None:
        self._job = job
        self._copied = copied
        self._copy = CopyCommit(job.copy(target), copied, besides=job.location_id)

    def lock(self, session: Session) -> None:
        """Lock the blob, both locations, the loss."""
        lock_blobs(session, [self._job.blob_id])
        lock_location(session, self._job.location_id)
        self._copy.lock(session)
        lock_loss(session, self._job.loss_id)

    def apply(self, session: Session) -> int:
        """Write; returns the id of the stored location.

        Raises SupersededError when the blob is not live any more (what was copied stays an intent
        for the sweep), and IntentLost.
        """
        location_id = self._copy.apply(session)
        loss = session.get(Loss, self._job.loss_id)
        if loss is None or loss.state != LossState.OPEN:
            raise SupersededError("the loss has ended", loss_id=self._job.loss_id)
        lost = lock_location(session, self._job.location_id)
        if lost is not None and lost.state == LocationState.STORED:
            # What is left of its bytes is the sweep's.
            lost.state, lost.condemned_at = LocationState.CONDEMNED, utc_clock()
        source = self._copied.source
        end_loss(loss, LossState.RESTORED)
        loss.restored_from = f"{source.channel}:{source.key}"[:191]
        loss.restored_location_id = location_id
        session.flush()
        return location_id


def note_present(session: Session, loss_id: int) -> None:
    """End a locked open loss whose bytes were there after all."""
    loss = lock_loss(session, loss_id)
    if loss is not None and loss.state == LossState.OPEN:
        end_loss(loss, LossState.PRESENT)
        session.flush()
