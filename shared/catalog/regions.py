"""Where the work of a bucket goes: to its region, unless nobody is there or it is drained."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import Bucket, RegionRow, Version, by_index, utc_clock, utc_now
from shared.core.errors import ConflictError, InvalidError
from shared.outbox.schema import consumed

#: The queue without a region, which every process consumes unless told otherwise.
BASE = ""
#: Who has consumed a queue within so many seconds is taken to be there: it may just restart.
HERE_SECONDS = 60.0
#: A queue that nobody has consumed for so long is not missed where a region's work goes.
_MISSED_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class RegionState:
    """A region that buckets, consumers or operators name."""

    name: str
    drained_to: str | None
    buckets: int


def region_of(session: Session, bucket: Bucket, queue: str) -> str:
    """Return the region into whose queue a task of this bucket is to be put now.

    That of the bucket. A drained region's work goes where the drain has said, and on from there if
    that one was drained later; a bucket that allows a fallback falls back to the base queue when
    nobody has consumed the region's queue for so long. Costs nothing for buckets without a region,
    one read by primary key for the others.
    """
    return region_for(session, bucket.region, bucket.region_fallback_seconds, queue)


def region_for(session: Session, region: str, fallback_seconds: float | None, queue: str) -> str:
    """Do as `region_of` for a bucket of which only its region and its fallback are known."""
    if not region:
        return BASE
    last = _end_of_drains(session, region)
    if last != region:
        return last
    if fallback_seconds is None:
        return region
    seen = session.scalar(
        sa.select(sa.literal(1)).where(
            consumed.c.queue == queue,
            consumed.c.region == region,
            consumed.c.last_seen >= utc_now(-fallback_seconds),
        )
    )
    return region if seen else BASE


def region_of_content(session: Session, blob_id: int, queue: str) -> str:
    """Return the region into whose queue a task of a content is to be put now.

    That of the bucket whose version had it last, also when that version is over: its channels can
    be reached there. The base queue when the bucket is gone.
    """
    # By the content's index, whose rows are in this order: else the newest of all might be read.
    last = by_index(
        sa.select(Version.bucket_id).where(Version.blob_id == blob_id), Version, "ix_versions_blob"
    )
    bucket_id = session.scalar(last.order_by(Version.id.desc()).limit(1))
    bucket = None if bucket_id is None else session.get(Bucket, bucket_id)
    return BASE if bucket is None else region_of(session, bucket, queue)


def _end_of_drains(session: Session, region: str) -> str:
    """Return the first region behind this one, or itself, that is not drained.

    Two drains into each other at the same moment leave a ring: its work goes to the base queue.
    """
    seen: set[str] = set()
    while region and region not in seen:
        seen.add(region)
        row = session.get(RegionRow, region)
        if row is None or row.drained_to is None:
            return region
        region = row.drained_to
    return BASE


def list_drains(session: Session) -> dict[str, str]:
    """Return where the work of each drained region goes."""
    drained = session.scalars(
        sa.select(RegionRow.name).where(RegionRow.drained_to.is_not(None))
    ).all()
    return {name: _end_of_drains(session, name) for name in drained}


def drain(session: Session, region: str, *, to: str = BASE, force: bool = False) -> None:
    """Send new work of a region elsewhere from now on; what waits there is not moved by this.

    What was drained into this region before goes on to the other one. Raises InvalidError for the
    base or the same region, ConflictError when the other one is itself drained (`region_drained`)
    or, without `force`, when nobody there consumes what this one does (`region_unconsumed`).
    """
    if not region or region == to:
        raise InvalidError("a region is drained into another, or into the base queue")
    # By name: two drains at the same moment wait for each other.
    rows = {
        one.name: one
        for one in session.scalars(
            sa.select(RegionRow)
            .where(RegionRow.name.in_((region, to)))
            .order_by(RegionRow.name)
            .with_for_update()
            .execution_options(populate_existing=True)
        )
    }
    target = rows.get(to)
    if target is not None and target.drained_to is not None:
        raise ConflictError(f"region {to} is drained itself", code="region_drained", region=to)
    row = rows.get(region)
    if not force and (row is None or row.drained_to != to):
        _refuse_unconsumed(session, region, to)
    if row is None:
        row = RegionRow(name=region)
        session.add(row)
    row.drained_to = to
    row.updated_at = utc_clock()
    session.flush()


def unconsumed_queues(session: Session, region: str, *, like: str) -> list[str] | None:
    """Return the queues that somebody consumes in the region `like`, but nobody in `region` now.

    None when nobody consumes anything there.
    """
    here = _consumed_since(session, region, HERE_SECONDS)
    if not here:
        return None
    return sorted(_consumed_since(session, like, _MISSED_SECONDS) - here)


def _refuse_unconsumed(session: Session, region: str, to: str) -> None:
    missing = unconsumed_queues(session, to, like=region)
    if missing == []:
        return
    what = "anything" if missing is None else ", ".join(missing)
    where = f"in region {to}" if to else "in the base queues"
    raise ConflictError(
        f"nobody consumes {what} {where}, so its work would wait there: start workers, or force it",
        code="region_unconsumed",
        region=to,
        queues=missing or [],
    )


def _consumed_since(session: Session, region: str, seconds: float) -> set[str]:
    return set(
        session.scalars(
            sa.select(consumed.c.queue).where(
                consumed.c.region == region, consumed.c.last_seen >= utc_now(-seconds)
            )
        )
    )


def reopen(session: Session, region: str) -> None:
    """Let a drained region have its new work again; another region is left as it is."""
    session.execute(sa.delete(RegionRow).where(RegionRow.name == region))


def list_regions(session: Session) -> list[RegionState]:
    """Return every region that a bucket or a drain names, by name."""
    counts = {
        str(name): int(count)
        for name, count in session.execute(
            sa.select(Bucket.region, sa.func.count()).group_by(Bucket.region)
        )
        if name
    }
    drained = {row.name: row.drained_to for row in session.scalars(sa.select(RegionRow))}
    return [
        RegionState(name, drained.get(name), counts.get(name, 0))
        for name in sorted(counts.keys() | drained.keys())
    ]
