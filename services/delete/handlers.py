"""Deletes the bytes of a content that nothing refers to any more, wherever they are.

Ownership is taken in a fenced transaction under the blob's lock; from then on the blob can only go
on to its end, by this task or by one that the sweep makes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import structlog

from services.delete import rules
from shared.catalog import fenced, removal
from shared.catalog.locking import lock_blobs
from shared.catalog.payloads import DeleteBlob
from shared.catalog.removal import Place
from shared.core.failpoints import failpoint
from shared.core.outcomes import Snooze
from shared.outbox import Execution
from shared.outbox.completion import Completion
from shared.outbox.db import Database
from shared.storage.errors import BreakerOpen, ChannelError, DeadlinePassed
from shared.storage.registry import OpenChannel

#: Seconds that the calls for one location may take.
PLACE_SECONDS = 60.0

_log = structlog.get_logger("delete")


class ChannelBook(Protocol):
    """Where the handler finds channels by name."""

    def find(self, name: str) -> tuple[OpenChannel, bool] | None:
        """Return a channel and whether it may take new bytes; None when there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deps:
    """What the handler works with."""

    db: Database
    channels: ChannelBook


def delete(execution: Execution, payload: DeleteBlob, deps: Deps) -> Snooze | None:
    """Delete one blob's bytes, if it is still the same condemnation and nothing refers to it.

    Waits uncounted until the grace is over, and while a channel keeps failing, six hours at most:
    the blob stays `deleting`, and other tasks go on. Anything that makes the task pointless (the
    blob was revived, deleted, condemned anew) ends it well.
    """
    failpoint("delete.claimed")
    task_id = execution.task.id
    taken = fenced.fenced(
        execution,
        deps.db,
        lock=lambda session: lock_blobs(session, [payload.blob_id]),
        body=lambda session: removal.take(
            session, blob_id=payload.blob_id, generation=payload.generation, task_id=task_id
        ),
    )
    failpoint("delete.after_ownership")
    if isinstance(taken, removal.Wait):
        return Snooze(min(taken.seconds, rules.LONGEST_WAIT_SECONDS), reason="grace")
    if isinstance(taken, removal.Nothing):
        _log.info("nothing_to_delete", blob_id=payload.blob_id, reason=taken.reason)
        return None
    while True:
        parked = _delete_places(execution, payload.blob_id, deps)
        if parked is not None:
            return Snooze(rules.snooze_seconds(parked), reason=f"{parked.count} locations failed")
        if _finish(execution, payload.blob_id, deps):
            failpoint("delete.after_commit")
            return None


def _delete_places(execution: Execution, blob_id: int, deps: Deps) -> rules.Parked | None:
    """Delete every location that is due; returns what is left, None when nothing is."""
    places = deps.db.run_session(lambda session: removal.places(session, blob_id), read_only=True)
    for place in places:
        execution.check()
        _delete_place(execution, place, deps)
        failpoint("delete.after_place")
    left = deps.db.run_session(lambda session: removal.left(session, blob_id), read_only=True)
    return rules.Parked(left.count, left.due_in_seconds) if left.count else None


def _delete_place(execution: Execution, place: Place, deps: Deps) -> None:
    """Delete one location's bytes and note it; a failure is noted too and stops nothing else."""
    found = deps.channels.find(place.channel)
    if found is None:
        _park(place, "the channel is not in the catalogue", deps)
        return
    channel = found[0].channel
    deadline = execution.deadline.within(PLACE_SECONDS)
    try:
        if place.upload_id:
            channel.abort_upload(place.key, place.upload_id, deadline=deadline)
        channel.delete(place.key, deadline=deadline)
    except BreakerOpen as error:
        _park(place, str(error), deps, seconds=error.retry_after_seconds)
        return
    except (ChannelError, DeadlinePassed) as error:
        execution.check()
        _park(place, str(error), deps)
        return
    failpoint("delete.after_bytes")
    deps.db.run_session(lambda session: removal.bury(session, place.location_id))


def _park(place: Place, detail: str, deps: Deps, *, seconds: float | None = None) -> None:
    # A breaker that is open says nothing of this location: not a failure of its own.
    tries = place.tries + (1 if seconds is None else 0)
    wait = rules.wait_after_failures(tries) if seconds is None else seconds
    _log.warning(
        "location_parked",
        location_id=place.location_id,
        channel=place.channel,
        tries=tries,
        wait_seconds=wait,
        error=detail,
    )
    deps.db.run_session(
        lambda session: removal.park(
            session, place.location_id, tries=tries, seconds=wait, detail=detail
        )
    )


def _finish(execution: Execution, blob_id: int, deps: Deps) -> bool:
    """Close the blob and complete the task; False when a location came up meanwhile."""
    execution.check()

    def write(tx: Completion) -> None:
        blob = lock_blobs(tx.session, [blob_id]).get(blob_id)
        if not removal.finish(tx.session, blob, task_id=execution.task.id):
            raise _LocationLeft
        if blob is not None:
            tx.result = {"deleted_bytes": blob.size_bytes}

    failpoint("delete.before_commit")
    try:
        fenced.complete(
            execution, deps.db, lock=lambda session: lock_blobs(session, [blob_id]), body=write
        )
    except _LocationLeft:
        return False
    return True


class _LocationLeft(Exception):
    """Undoes the commit: there is one more location to delete."""
