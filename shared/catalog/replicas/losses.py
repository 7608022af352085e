"""A stored location whose bytes are missing or damaged: repaired from another copy, or restored.

The lost location stays stored until a proven copy has taken its place. Only what no bucket wants
where it is, and two looks agree on, is given up at once.
"""

from __future__ import annotations

from typing import Literal

import structlog
from sqlalchemy.orm import Session

from shared.catalog.context import Catalogue
from shared.catalog.locking import lock_blobs
from shared.catalog.models import BlobState, Location, LocationState, utc_clock
from shared.catalog.places import lock_location, lost_places, stored_places
from shared.catalog.replicas.planning import repair
from shared.catalog.replicas.rules import wanted
from shared.catalog.restores import losses as restoring
from shared.catalog.restores.losses import FoundBy

#: What became of a report.
Answer = Literal["over", "dropped", "repair", "restore", "waits"]

_log = structlog.get_logger("catalog.losses")


def report_loss(
    session: Session, catalogue: Catalogue, location_id: int, *, found_by: FoundBy, detail: str
) -> Answer:
    """Plan what brings a lost location's content back; the same report again changes nothing.

    `over`: it is not a stored location of a live blob any more. `repair`: another copy is there
    and a task makes a fresh one of it. `dropped`: another copy is there and no bucket wants one
    here. `restore`: it was the last one, and the backups are asked. `waits`: this deployment has
    nobody who could, or nobody wants it here and the audit is to look as well.
    """
    location = session.get(Location, location_id, populate_existing=True)
    if location is None:
        return "over"
    blob = lock_blobs(session, [location.blob_id]).get(location.blob_id)
    location = lock_location(session, location_id)
    if (
        blob is None
        or blob.state != BlobState.LIVE
        or location is None
        or location.state != LocationState.STORED
        or location.blob_id != blob.id
    ):
        return "over"
    _log.warning(
        "location_lost",
        location_id=location_id,
        blob_id=blob.id,
        channel=location.channel,
        found_by=str(found_by),
        detail=detail,
    )
    lost = {location_id, *lost_places(session, blob.id)}
    others = stored_places(session, blob.id, besides=lost)
    if not others:
        restoring.report_loss(
            session, catalogue, location_id=location_id, found_by=found_by, detail=detail
        )
        return "restore" if catalogue.serves("restore") else "waits"
    asked = wanted(session, blob.id)
    if not asked.allows(location.channel):
        if found_by != FoundBy.AUDIT:
            # A single look may be wrong, and nobody has just proven the others.
            return "waits"
        location.state, location.condemned_at = LocationState.CONDEMNED, utc_clock()
        session.flush()
        return "dropped"
    is_planned = repair(session, catalogue, blob, location, region=asked.region)
    return "repair" if is_planned or catalogue.serves("replica") else "waits"
