"""Every damage that `blox check` must see: how it is planted, and the words that name it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from shared.catalog.models import (
    Blob,
    BlobRef,
    Bucket,
    ChannelRecord,
    Location,
    ObjectRow,
    Review,
    Version,
)
from shared.core.clock import utc_now
from shared.outbox.schema import nodes, task_events, tasks
from shared.storage.keys import fresh_key
from tests.acceptance.still import Still
from tests.support.content import sha256, soon

PAST = dt.datetime(2020, 1, 1)


@dataclass(frozen=True, slots=True)
class Damage:
    """One way to break a stopped stack, and the line that `blox check` must write then."""

    name: str
    plant: Callable[[Still], None]
    invariant: str
    words: str
    #: A unique index that would keep the damage out.
    index: str = ""
    #: Settings of the check itself.
    variables: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


# -- tasks -------------------------------------------------------------------------------------


def _dead_owner(still: Still) -> None:
    still.change(
        tasks, still.cast.waiting_task, state="running", owner="gone-1:x", lease_until=PAST
    )


def _overdue(still: Still) -> None:
    still.change(tasks, still.cast.waiting_task, state="scheduled", due_at=PAST)


def _forgotten(state: str) -> Callable[[Still], None]:
    def plant(still: Still) -> None:
        moment = utc_now() + dt.timedelta(hours=1)
        still.add(
            nodes,
            node="idle",
            role="worker",
            queues=["upload"],
            threads=4,
            started_at=moment,
            last_seen=moment,
        )
        values = {"state": state, "due_at": PAST, "lease_until": PAST}
        still.change(tasks, still.cast.waiting_task, **values)

    return plant


def _unpushed(still: Still) -> None:
    still.change(tasks, still.cast.waiting_task, state="dispatching", lease_until=PAST)


def _attempts(still: Still) -> None:
    still.change(tasks, still.cast.upload_task, attempt=99, max_attempts=3)


def _half_ended(still: Still) -> None:
    still.change(tasks, still.cast.upload_task, finished_at=None)


def _half_parked(still: Still) -> None:
    still.change(tasks, still.cast.upload_task, resource_key="channel:main")


def _event(still: Still, task_id: int, source: str | None, target: str) -> None:
    still.add(
        task_events,
        task_id=task_id,
        type=target,
        data={"from": source, "to": target},
        created_at=utc_now(),
    )


def _illegal(still: Still) -> None:
    _event(still, still.cast.upload_task, "completed", "running")


def _gap(still: Still) -> None:
    is_middle = sa.and_(
        task_events.c.task_id == still.cast.upload_task, task_events.c.type == "running"
    )
    still.drop(task_events, is_middle)


def _unrecorded(still: Still) -> None:
    still.change(tasks, still.cast.cancelled_task, state="failed")


def _unaudited(still: Still) -> None:
    _event(still, still.cast.cancelled_task, "cancelled", "pending")
    _event(still, still.cast.cancelled_task, "pending", "cancelled")


# -- contents ----------------------------------------------------------------------------------


def _blob(still: Still, version_id: int) -> int:
    return int(still.one(Version.blob_id, Version.id == version_id))


def _object(still: Still, version_id: int) -> int:
    return int(still.one(Version.object_id, Version.id == version_id))


def _no_location(still: Still) -> None:
    still.drop(Location, Location.id == still.location(still.cast.kept).id)


def _no_reference(still: Still) -> None:
    still.drop(BlobRef, BlobRef.holder_id == still.cast.kept)


def _stray_reference(still: Still) -> None:
    still.add(
        BlobRef,
        blob_id=_blob(still, still.cast.replaced),
        holder_kind="version",
        holder_id=still.cast.replaced,
        created_at=PAST,
    )


def _grace_over(still: Still) -> None:
    still.change(Blob, _blob(still, still.cast.replaced), delete_after=PAST)


def _deleted_with_place(still: Still) -> None:
    still.change(Blob, _blob(still, still.cast.replaced), state="deleted")


def _live_twice(still: Still) -> None:
    still.copy(Blob, _blob(still, still.cast.kept))


def _key_twice(still: Still) -> None:
    still.copy(Location, still.location(still.cast.kept).id)


# -- objects -----------------------------------------------------------------------------------


def _second_stored(still: Still) -> None:
    still.change(Version, still.cast.replaced, state="stored")


def _nothing_current(still: Still) -> None:
    still.change(ObjectRow, _object(still, still.cast.kept), current_version_id=None)


def _back(still: Still) -> None:
    still.change(Version, still.cast.replaced, state="stored")
    still.change(Version, still.cast.changed, state="replaced")
    still.change(
        ObjectRow,
        _object(still, still.cast.changed),
        current_version_id=still.cast.replaced,
        served_version_id=still.cast.replaced,
    )


def _blocked_served(still: Still) -> None:
    still.change(
        ObjectRow, _object(still, still.cast.blocked), served_version_id=still.cast.blocked
    )


def _other_served(still: Still) -> None:
    still.change(ObjectRow, _object(still, still.cast.kept), served_version_id=still.cast.letter)


def _listed_otherwise(still: Still) -> None:
    still.change(ObjectRow, _object(still, still.cast.kept), etag="0" * 32)


def _waits_behind(still: Still) -> None:
    still.change(Version, still.cast.superseded, state="failed")


def _superseded_by_nothing(still: Still) -> None:
    still.change(ObjectRow, _object(still, still.cast.waiting), generation=1)


# -- work --------------------------------------------------------------------------------------


def _no_task(still: Still) -> None:
    still.drop(tasks, tasks.c.id == still.cast.waiting_task)


def _task_ended(still: Still) -> None:
    still.change(tasks, still.cast.waiting_task, state="completed", finished_at=PAST)


def _task_for_nothing(still: Still) -> None:
    still.change(Version, still.cast.waiting, state="failed")


def _deleting_alone(still: Still) -> None:
    still.change(Blob, _blob(still, still.cast.replaced), state="deleting", delete_owner=None)


def _left_intent(still: Still) -> None:
    location = still.location(still.cast.kept)
    still.copy(Location, location.id, state="intent", physical_key=fresh_key("left"))


# -- reviews -----------------------------------------------------------------------------------


def _review_of(still: Still, version_id: int) -> int:
    return int(still.one(Review.id, Review.version_id == version_id))


def _rejected_but_stored(still: Still) -> None:
    still.change(Review, _review_of(still, still.cast.letter), state="rejected")


def _never_judged(still: Still) -> None:
    bucket = still.one(Version.bucket_id, Version.id == still.cast.kept)
    still.change(
        Bucket, bucket, review_policy={"max_bytes": 1}, review_policy_version="x", updated_at=PAST
    )


def _decided_but_reviewing(still: Still) -> None:
    still.change(Review, _review_of(still, still.cast.doubtful), state="passed")


def _open_for_stored(still: Still) -> None:
    still.change(Review, _review_of(still, still.cast.letter), state="open")


# -- bytes -------------------------------------------------------------------------------------


def _bytes_gone(still: Still) -> None:
    still.channel.delete(still.location(still.cast.kept).physical_key, deadline=soon())


def _bytes_short(still: Still) -> None:
    still.put(still.location(still.cast.kept).physical_key, b"short")


def _channel_unknown(still: Still) -> None:
    still.change(Location, still.location(still.cast.kept).id, channel="nowhere")


def _orphan(still: Still) -> None:
    still.put(fresh_key("orphan"), b"nobody's")


def _late_write(still: Still) -> None:
    """Bytes that arrive under a key whose removal is done."""
    location = still.location(still.cast.replaced)
    values: dict[str, Any] = {"state": "tombstone", "tombstone_at": PAST}
    still.change(Location, location.id, **values)


def _open_upload(still: Still) -> None:
    still.channel.create_upload(fresh_key("open"), sha256=sha256(b"never sent"), deadline=soon())


def _channel_silent(still: Still) -> None:
    # Nothing listens on port 1, and no folder has such a name.
    settings = dict(still.one(ChannelRecord.settings, ChannelRecord.name == "main"))
    settings |= {"endpoint": "http://127.0.0.1:1"} if "endpoint" in settings else {"root": "/no"}
    still.change(ChannelRecord, "main", settings=settings)


def _acknowledged_gone(still: Still) -> None:
    key = still.one(Version.staging_key, Version.id == still.cast.waiting)
    (path,) = (path for path in still.staged_files() if str(path).endswith(key))
    path.unlink()


def _acknowledged_unnamed(still: Still) -> None:
    still.change(Version, still.cast.given_up, staging_key=None)


def _nothing(_still: Still) -> None:
    """Leave the stack as it is: the settings are wrong."""


_REVIEW = "only what passed is readable"
_TOGETHER = "reviews and versions wait together"
_ROWS = "unfinished rows have their task"
_STORED = "stored bytes are there"
_WAITS = "nothing waits beyond the scans"
_RECORDED = "every transition is recorded"
_ACKNOWLEDGED = "acknowledged bytes are there"

DAMAGES = (
    Damage("dead owner", _dead_owner, "running tasks have a living owner", "lease ended at 2020"),
    Damage("overdue", _overdue, _WAITS, "upload.store is scheduled since 2020"),
    Damage("forgotten", _forgotten("pending"), _WAITS, "upload.store is pending since 2020"),
    Damage("unfetched", _forgotten("dispatched"), _WAITS, "is dispatched since 2020"),
    Damage("unpushed", _unpushed, _WAITS, "upload.store is dispatching since 2020"),
    Damage("attempts", _attempts, "attempts stay within their limit", "99 attempts of 3"),
    Damage("half ended", _half_ended, "a task has ended or it has not", "completed, finished at"),
    Damage(
        "half parked",
        _half_parked,
        "parked tasks name their resource",
        "completed, resource channel:main",
    ),
    Damage("illegal", _illegal, "only legal transitions happen", "from completed to running"),
    Damage("gap", _gap, _RECORDED, "then moved from running"),
    Damage("unrecorded", _unrecorded, _RECORDED, "is failed, but moved to cancelled"),
    Damage(
        "unaudited",
        _unaudited,
        "ended tasks change only by an audited retry",
        "left an end 1 times, 0 of them audited",
    ),
    Damage("no location", _no_location, "stored versions have a place", "no stored location"),
    Damage("no reference", _no_reference, "references are the stored versions", "no reference to"),
    Damage("stray", _stray_reference, "references are the stored versions", "(replaced)"),
    Damage("grace over", _grace_over, "nothing unreferenced outlives the grace", "condemned"),
    Damage("undead", _deleted_with_place, "deleted content has no place", "deleted, but location"),
    Damage(
        "live twice",
        _live_twice,
        "a content is live at most once",
        "live 2 times",
        index="uq_blobs_content",
    ),
    Damage(
        "key twice", _key_twice, "a physical key is used once", "2 loc", index="uq_locations_key"
    ),
    Damage("second stored", _second_stored, "one stored version is current", "2 versions are"),
    Damage("none current", _nothing_current, "one stored version is current", "them is None"),
    Damage("back", _back, "what is current never goes back", "generation 1 is current, 2 was"),
    Damage("blocked served", _blocked_served, "the newest readable version is served", "blocked"),
    Damage("other served", _other_served, "the newest readable version is served", "should serve"),
    Damage("listed", _listed_otherwise, "listings tell what is served", "ETag 000"),
    Damage("waits behind", _waits_behind, "a newer write ends the older ones", "failed, although"),
    Damage("superseded", _superseded_by_nothing, "what superseded it is newer", "object has 1"),
    Damage("no task", _no_task, _ROWS, "pending, but its task"),
    Damage("task ended", _task_ended, _ROWS, "is completed"),
    Damage("for nothing", _task_for_nothing, "unfinished tasks have their row", "is failed"),
    Damage("deleting alone", _deleting_alone, _ROWS, "deleting, but its task None is not there"),
    Damage("left intent", _left_intent, _ROWS, "no sweep took it"),
    Damage("rejected", _rejected_but_stored, _REVIEW, "stored, but its review is rejected"),
    Damage("never judged", _never_judged, _REVIEW, "nobody has judged its content"),
    Damage("decided", _decided_but_reviewing, _TOGETHER, "reviewing, but its review is passed"),
    Damage("open", _open_for_stored, _TOGETHER, "open, but version"),
    Damage("bytes gone", _bytes_gone, _STORED, "the key is not there"),
    Damage("bytes short", _bytes_short, _STORED, "5 bytes instead of 3000"),
    Damage("no channel", _channel_unknown, _STORED, "there is no such channel"),
    Damage("orphan", _orphan, "every key is named", "no location names it"),
    Damage("late write", _late_write, "every key is named", "no location names it"),
    Damage("open upload", _open_upload, "every open upload is needed", "no execution goes on"),
    Damage("silent", _channel_silent, "channels answer", "main"),
    Damage("acknowledged gone", _acknowledged_gone, _ACKNOWLEDGED, "the key is not there"),
    Damage("no staging key", _acknowledged_unnamed, _ACKNOWLEDGED, "no staging file is named"),
    Damage("unnamed file", _acknowledged_unnamed, "every staging file is named", "no version"),
    Damage(
        "staging away", _nothing, "staging answers", "", variables={"BLOX_STAGING__PATH": "/no"}
    ),
)
