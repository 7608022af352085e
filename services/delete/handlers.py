"""Deletes the bytes of a content that nothing refers to any more, wherever they are.

Ownership is taken in a fenced transaction under the blob's lock; from then on the blob can only go
on to its end, by this task or by one that the sweep makes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import structlog

from services.delete import rules
from shared.catalog import fenced, removal
from shared.catalog.channel_slots import ChannelSlots
from shared.catalog.erasing import ChannelBook, erase, places
from shared.catalog.locking import lock_blobs
from shared.catalog.payloads import DeleteBlob
from shared.core.errors import ResourceBusy
from shared.core.failpoints import failpoint
from shared.core.outcomes import Snooze
from shared.outbox import Execution
from shared.outbox.completion import Completion
from shared.outbox.db import Database

_log = structlog.get_logger("delete")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deps:
    """What the handler works with."""

    db: Database
    channels: ChannelBook
    slots: ChannelSlots = field(default_factory=ChannelSlots)


def delete(execution: Execution, payload: DeleteBlob, deps: Deps) -> Snooze | None:
    """Delete one blob's bytes, if it is still the same condemnation and nothing refers to it.

    Waits uncounted until the grace is over, and while a channel is full or keeps failing, six hours
    at most: the blob stays `deleting`, and other tasks go on. Anything that makes the task
    pointless (the blob was revived, deleted, condemned anew) ends it well.
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
        return Snooze(rules.snooze_seconds(taken.seconds), reason="grace")
    if isinstance(taken, removal.Nothing):
        _log.info("nothing_to_delete", blob_id=payload.blob_id, reason=taken.reason)
        return None
    while True:
        left = _delete_places(execution, payload.blob_id, deps)
        if left.count:
            seconds = rules.snooze_seconds(left.due_in_seconds)
            return Snooze(seconds, reason=f"{left.count} locations failed")
        if _finish(execution, payload.blob_id, deps):
            failpoint("delete.after_commit")
            return None


def _delete_places(execution: Execution, blob_id: int, deps: Deps) -> removal.Left:
    """Delete every location that is due, whichever others fail; returns what is left.

    Raises ResourceBusy after all of them when a channel takes no more at the moment.
    """
    due = deps.db.run_session(lambda session: places(session, blob_id), read_only=True)
    busy: ResourceBusy | None = None
    for place in due:
        execution.check()
        found = deps.channels.find(place.channel)
        try:
            with deps.slots.hold(execution, found, even_broken=True):
                erase(
                    deps.db,
                    deps.channels,
                    place,
                    deadline=execution.deadline,
                    check=execution.check,
                )
        except ResourceBusy as error:
            busy = busy or error
        failpoint("delete.after_place")
    if busy is not None:
        raise busy
    return deps.db.run_session(lambda session: removal.left(session, blob_id), read_only=True)


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
