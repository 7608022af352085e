"""What `blox doctor` says of regions: buckets against consumers and channels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.channels import list_channels
from shared.catalog.models import Bucket, RegionRow
from shared.outbox.nodes import live_nodes
from shared.outbox.window import Place
from shared.runtime.assembly import Parts

#: Names shown of each kind of fault.
_SHOWN = 5
#: Events go to the base queue, whatever their bucket's region.
_WITHOUT_REGION = frozenset({"notify"})


def look_at_regions(parts: Parts) -> Iterator[tuple[str, str, str]]:
    """Yield (verdict, what, detail) for every region that a bucket names, nothing without any."""
    consumed = consumed_places(parts)
    needed = {queue for queue in queues_of(parts) if queue not in _WITHOUT_REGION}
    with Session(parts.engine) as session:
        buckets = session.execute(
            sa.select(
                Bucket.name, Bucket.region, Bucket.channels, Bucket.region_fallback_seconds
            ).where(Bucket.region != "")
        ).all()
        drained = {row.name: row.drained_to for row in session.scalars(sa.select(RegionRow))}
        channel_regions = {record.name: record.region for record in list_channels(session)}
    for region in sorted({bucket.region for bucket in buckets}):
        what = f"region {region}"
        own = [bucket for bucket in buckets if bucket.region == region]
        if region in drained:
            to = drained[region] or "the base queues"
            yield "warning", what, f"is drained: its work goes to {to}"
        elif missing := {queue for queue in needed if Place(queue, region) not in consumed}:
            nobody = f"nobody consumes {'it' if missing == needed else _some(sorted(missing))}"
            stuck = [bucket.name for bucket in own if bucket.region_fallback_seconds is None]
            if stuck:
                yield "fault", what, f"{nobody}, that work of {_some(stuck)} waits"
            else:
                yield "warning", what, f"{nobody}: that work falls back to the base queues"
        else:
            yield "ok", what, "is consumed"
        far = sorted(
            {
                name
                for bucket in own
                for name in bucket.channels
                if channel_regions.get(name, "") not in {"", region}
            }
        )
        if far:
            yield "warning", what, f"its buckets store on channels of other regions: {_some(far)}"


def consumed_places(parts: Parts) -> set[Place]:
    """Return what live processes consume now."""
    return {Place.of(name) for node in live_nodes(parts.outbox.context) for name in node.queues}


def queues_of(parts: Parts) -> list[str]:
    """Return the queues of the services that are not switched off."""
    kinds = (getattr(parts.catalogue.kinds, name.name) for name in fields(parts.catalogue.kinds))
    return sorted({kind.queue for kind in kinds if parts.catalogue.serves(kind.queue)})


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    shown = ", ".join(sorted(names)[:_SHOWN])
    return f"{shown} and {more} more" if more > 0 else shown
