"""The replica worker's side: what there is to copy, and the one commit that makes it count."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.copying import Copied, CopyCommit, CopyJob, SourceCopy
from shared.catalog.locking import lock_blobs
from shared.catalog.models import Blob, BlobState, LocationState, Replica, ReplicaState, utc_clock
from shared.catalog.places import lock_location, stored_on, stored_places
from shared.catalog.replicas.planning import complete, known_losses
from shared.catalog.replicas.rules import wanted
from shared.core.errors import SupersededError


@dataclass(frozen=True, slots=True)
class ReplicaJob:
    """One copy to make; `place` is set when a stored location is there already."""

    replica_id: int
    copy: CopyJob
    lost_location_id: int | None
    place: int | None


def read_replica(session: Session, replica_id: int, *, task_id: int) -> ReplicaJob | None:
    """Return what a replica's task has to do, None when its copy is there.

    Raises SupersededError when nobody asks for the copy any more, or another task has it.
    """
    row = session.get(Replica, replica_id)
    if row is None:
        raise SupersededError("the replica is gone", replica_id=replica_id)
    if row.state == ReplicaState.COMPLETED:
        return None
    blob = session.get(Blob, row.blob_id)
    _check(session, row, blob, task_id=task_id)
    assert blob is not None
    sources = tuple(
        SourceCopy(one.id, one.channel, one.key, one.etag)
        for one in stored_places(session, blob.id, besides=known_losses(session, blob.id))
        if one.channel != row.channel
    )
    return ReplicaJob(
        replica_id=row.id,
        copy=CopyJob(blob.id, blob.size_bytes, blob.sha256, sources, row.channel),
        lost_location_id=row.lost_location_id,
        place=stored_on(session, blob.id, row.channel, besides=row.lost_location_id),
    )


class ReplicaCommit:
    """The commit of a replica's copy: `lock` takes the domain rows, `apply` writes.

    `copied` is None when a stored location was there already.
    """

    def __init__(self, job: ReplicaJob, copied: Copied | None, *, task_id: int) -> None:
        self._job = job
        self._task_id = task_id
        self._copied = copied
        self._copy: CopyCommit | None = None

    def lock(self, session: Session) -> None:
        """Lock the blob, the locations by ascending id, then the replica."""
        lock_blobs(session, [self._job.copy.blob_id])
        # As it is now: a copy that came to the channel meanwhile may have been found lost since.
        lost_id = session.scalar(
            sa.select(Replica.lost_location_id).where(Replica.id == self._job.replica_id)
        )
        copied = self._copied
        ids = (lost_id, None if copied is None else copied.location_id)
        for location_id in sorted(one for one in ids if one is not None):
            lock_location(session, location_id)
        if copied is not None:
            self._copy = CopyCommit(self._job.copy, copied, besides=lost_id)
        _locked(session, self._job.replica_id)

    def apply(self, session: Session) -> int:
        """Make the location stored and the replica completed; returns the location's id.

        Raises SupersededError when the blob is not live or the rule does not stand any more (the
        location stays an intent for the sweep), IntentLost when a sweep has taken it. Neither
        writes anything.
        """
        row = _locked(session, self._job.replica_id)
        if row is None:
            raise SupersededError("the replica is gone", replica_id=self._job.replica_id)
        blob = lock_blobs(session, [row.blob_id]).get(row.blob_id)
        _check(session, row, blob, task_id=self._task_id)
        if self._copy is not None:
            place: int | None = self._copy.apply(session)
        else:
            place = stored_on(session, row.blob_id, row.channel, besides=row.lost_location_id)
        if place is None:
            raise SupersededError("the copy that was there is gone", replica_id=row.id)
        if row.lost_location_id is not None:
            self._give_up(session, row.lost_location_id)
        complete(row, place)
        session.flush()
        return place

    def _give_up(self, session: Session, location_id: int) -> None:
        """Leave what was lost to the sweep, now that a proven copy has taken its place."""
        lost = lock_location(session, location_id)
        if lost is not None and lost.state == LocationState.STORED:
            lost.state, lost.condemned_at = LocationState.CONDEMNED, utc_clock()
            session.flush()


def _check(session: Session, row: Replica, blob: Blob | None, *, task_id: int) -> None:
    if row.state != ReplicaState.PENDING or row.task_id != task_id:
        raise SupersededError(f"the replica is {row.state}", replica_id=row.id)
    if blob is None or blob.state != BlobState.LIVE:
        state = "gone" if blob is None else blob.state
        raise SupersededError(f"the blob is {state}", blob_id=row.blob_id)
    asked = wanted(session, row.blob_id)
    stands = row.channel in asked.replicas
    if row.lost_location_id is not None:
        # What was lost may have been the first copy.
        stands = asked.allows(row.channel)
    if not stands:
        raise SupersededError("no rule asks for the copy", blob_id=row.blob_id, channel=row.channel)


def _locked(session: Session, replica_id: int) -> Replica | None:
    return session.scalars(
        sa.select(Replica)
        .where(Replica.id == replica_id)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one_or_none()
