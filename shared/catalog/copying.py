"""One more copy of a blob: intent under a fresh key, bytes from any copy there is, proof.

A copy that was cut short goes on from the parts that the target has, in whatever process, also with
another source. What becomes of the new location is the caller's one fenced commit (`CopyCommit`).
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog import intents
from shared.catalog.channel_slots import resource_of
from shared.catalog.copy_job import (
    Copied,
    CopyDeps,
    CopyJob,
    Damage,
    Method,
    NoSource,
    SourceCopy,
)
from shared.catalog.copy_run import CopyRun
from shared.catalog.locking import lock_blobs
from shared.catalog.models import BlobState, Location, LocationState, utc_clock
from shared.catalog.places import lock_location, stored_on
from shared.catalog.sending import IntentRows, LocationRows
from shared.catalog.store import IntentLost
from shared.core.clock import utc_now
from shared.core.errors import SupersededError
from shared.core.outcomes import Snooze
from shared.storage.errors import BreakerOpen, ChannelUnavailable

if TYPE_CHECKING:
    from shared.outbox.execution import Execution

__all__ = [
    "Copied",
    "CopyCommit",
    "CopyDeps",
    "CopyJob",
    "CopyRows",
    "Damage",
    "Method",
    "NoSource",
    "SourceCopy",
    "copy_blob",
    "patient_seconds",
    "read_sources",
]

#: Seconds between two looks whether an operator has switched the target on again.
OPERATOR_WAIT_SECONDS = 60.0
#: A target that stays away is asked less often: after this share of the task's age.
PATIENCE = 0.1
LONGEST_WAIT_SECONDS = 600.0


class CopyRows(LocationRows):
    """Locations of a live blob as intents."""

    def __init__(self, blob_id: int) -> None:
        self._blob_id = blob_id

    def lock(self, session: Session) -> object:
        """Lock the blob."""
        return lock_blobs(session, [self._blob_id])

    def begin(self, session: Session, *, channel: str, execution: Execution) -> tuple[int, str]:
        """See IntentRows.begin."""
        location = intents.begin_copy(
            session, blob_id=self._blob_id, channel=channel, execution=execution
        )
        return location.id, location.key


def copy_blob(
    execution: Execution, deps: CopyDeps, job: CopyJob, *, rows: IntentRows | None = None
) -> Copied | Snooze:
    """Bring proven bytes to the target under a fresh key; its row stays an intent.

    Sources are tried in turn; of one that is damaged `deps.on_damage` hears. A Snooze, to be
    returned by the handler as it is, means that the target or all sources are left alone for now.
    Raises ChannelError when the target failed, SourceUnavailable when no source could be read now,
    NoSource when none can help, SupersededError when nobody waits for the bytes any more. The
    task's checkpoint belongs to this function. `rows` are the intents, by default locations of a
    blob that must be live.
    """
    found = deps.channels.find(job.target)
    if found is None:
        raise ChannelUnavailable("the channel is gone", channel=job.target)
    opened, is_enabled = found
    if not is_enabled:
        return _wait(execution, OPERATOR_WAIT_SECONDS, f"channel {job.target} is switched off")
    resource = resource_of(job.target)
    if not opened.ready():
        seconds = opened.retry_after_seconds()
        return _wait(execution, seconds, f"channel {job.target} is left alone", resource)
    copy = CopyRun(execution, deps, job, opened, rows or CopyRows(job.blob_id))
    try:
        return copy.run()
    except BreakerOpen as error:
        # Another's failures opened it: what has been sent is gone on from.
        is_target = error.facts.get("channel") == job.target
        return _wait(
            execution, error.retry_after_seconds, str(error), resource if is_target else None
        )


def patient_seconds(execution: Execution, seconds: float) -> float:
    """Return how long to wait for a channel: the longer it has been waited for, the less often."""
    age_seconds = (utc_now() - execution.task.created_at).total_seconds()
    patient = max(seconds, min(LONGEST_WAIT_SECONDS, age_seconds * PATIENCE))
    # Spread, so that a channel that is well again is not met by all at once.
    return patient * random.uniform(1.0, 1.2) + 0.1


def _wait(execution: Execution, seconds: float, reason: str, resource: str | None = None) -> Snooze:
    return Snooze(patient_seconds(execution, seconds), reason=reason, resource=resource)


def read_sources(session: Session, blob_id: int, *, without: str = "") -> tuple[SourceCopy, ...]:
    """Return the stored locations of a blob, but for those on the channel `without`."""
    rows = session.execute(
        sa.select(Location.id, Location.channel, Location.key, Location.etag)
        .where(
            Location.blob_id == blob_id,
            Location.state == LocationState.STORED,
            Location.channel != without,
        )
        .order_by(Location.id)
    )
    return tuple(SourceCopy(*row) for row in rows)


class CopyCommit:
    """The commit of a proven copy of a live blob: `lock` takes the rows, `apply` writes.

    `besides` is a location on the channel that was lost: it does not count as a copy.
    """

    def __init__(self, job: CopyJob, copied: Copied, *, besides: int | None = None) -> None:
        self._job = job
        self._copied = copied
        self._besides = besides

    def lock(self, session: Session) -> None:
        """Lock the blob and the location; the caller's own domain rows come after them."""
        lock_blobs(session, [self._job.blob_id])
        lock_location(session, self._copied.location_id)

    def apply(self, session: Session) -> int:
        """Make the location stored; returns the id of the channel's stored location.

        When the channel has got another copy meanwhile, that one stays and ours is left to the
        sweep. Raises SupersededError when the blob is not live any more (the location stays an
        intent), and IntentLost when a sweep has taken it. Neither writes anything.
        """
        blob = lock_blobs(session, [self._job.blob_id]).get(self._job.blob_id)
        if blob is None or blob.state != BlobState.LIVE:
            state = "gone" if blob is None else blob.state
            raise SupersededError(f"the blob is {state}", blob_id=self._job.blob_id)
        other = stored_on(session, blob.id, self._job.target, besides=self._besides)
        if other is not None:
            return other
        location = lock_location(session, self._copied.location_id)
        if (
            location is None
            or location.state != LocationState.INTENT
            or location.blob_id != self._job.blob_id
        ):
            raise IntentLost("a sweep has taken the location", location_id=self._copied.location_id)
        location.state = LocationState.STORED
        location.stored_at = utc_clock()
        location.etag = self._copied.etag[:255]
        location.upload_id = None
        session.flush()
        return location.id
