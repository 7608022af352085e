"""Invariants of the catalogue's rows among themselves and with their tasks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from sqlalchemy.orm import Session

from shared.catalog.invariants.backups import backup_breaches
from shared.catalog.invariants.contents import content_breaches
from shared.catalog.invariants.notifications import notification_breaches
from shared.catalog.invariants.objects import object_breaches
from shared.catalog.invariants.origins import origin_breaches
from shared.catalog.invariants.removal import removal_breaches
from shared.catalog.invariants.replicas import replica_breaches
from shared.catalog.invariants.rereviews import rereview_breaches
from shared.catalog.invariants.reviews import review_breaches
from shared.catalog.invariants.sessions import session_breaches
from shared.catalog.invariants.work import work_breaches
from shared.outbox.breach import Breach


def row_breaches(
    session: Session,
    *,
    now: dt.datetime,
    late_seconds: float,
    sweep_seconds: float,
    serves_deletions: bool = True,
) -> Iterator[Breach]:
    """Yield what is wrong with the rows.

    What is younger than `late_seconds` may be on its way; what an execution left behind waits
    `sweep_seconds` for the sweeps. Where nobody serves deletions, content that is to go waits.
    """
    late = now - dt.timedelta(seconds=late_seconds)
    yield from content_breaches(session, late, serves_deletions=serves_deletions)
    yield from object_breaches(session)
    swept = now - dt.timedelta(seconds=sweep_seconds)
    yield from work_breaches(session, late, swept, serves_deletions=serves_deletions)
    yield from session_breaches(session, late, swept)
    yield from review_breaches(session)
    yield from rereview_breaches(session, swept)
    yield from removal_breaches(session, late)
    yield from backup_breaches(session, late, swept)
    yield from replica_breaches(session, late)
    yield from origin_breaches(session, late)
    yield from notification_breaches(session, late)
