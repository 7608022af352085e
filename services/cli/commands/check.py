"""`blox check`: do the invariants hold, on the database and on the channels."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import sqlalchemy as sa
import typer
from sqlalchemy.orm import Session

from services.cli.render import Format, FormatOption, show_rows
from services.cli.stack import DirectoryOption, open_parts
from shared.catalog.invariants.bytes import Stores, byte_breaches
from shared.catalog.invariants.leftovers import Ages
from shared.catalog.invariants.origins import hop_breaches
from shared.catalog.invariants.rows import row_breaches
from shared.catalog.models import utc_clock
from shared.fetch import FetchPolicy
from shared.outbox.breach import Breach
from shared.outbox.invariants import task_breaches
from shared.runtime.assembly import Parts
from shared.runtime.settings import Settings

#: Passes of the clean-up that what is left behind may take: two must agree, a third removes.
_PASSES = 3


def check(
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every copy back and compare its SHA-256.")
    ] = False,
    late_seconds: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="What is late by less is on its way; default: two scans and a lease.",
        ),
    ] = None,
    min_age_seconds: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="What was left behind more lately waits for the sweeps; default: their ages.",
        ),
    ] = None,
    settle_seconds: Annotated[
        float, typer.Option(min=0.0, help="Between two looks: what one sees only was on its way.")
    ] = 1.0,
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = Path(".blox"),
) -> int:
    """List broken invariants; exit 1 if there are any.

    Meant for a quiet system. Under load, what two looks agree on is listed.
    """
    with open_parts(directory) as parts:
        late = _late_seconds(parts.settings) if late_seconds is None else late_seconds
        ages = _ages(parts.settings, min_age_seconds)
        breaches = list(_look(parts, late, ages, deep=deep))
        if breaches:
            threading.Event().wait(settle_seconds)
            again = {(item.invariant, item.subject) for item in _look(parts, late, ages, deep=deep)}
            breaches = [item for item in breaches if (item.invariant, item.subject) in again]
    show_rows(
        [asdict(item) for item in breaches],
        ("invariant", "subject", "detail"),
        output,
        empty="every invariant holds",
    )
    return 1 if breaches else 0


def _late_seconds(settings: Settings) -> float:
    outbox = settings.outbox
    return 2 * outbox.scan_seconds + max(outbox.lease_seconds, outbox.recovery_max_seconds)


def _ages(settings: Settings, wanted: float | None) -> Ages:
    if wanted is not None:
        return Ages(key=wanted, upload=wanted, tombstone=wanted, staging=wanted)
    sweeps, passes = settings.sweeps, _PASSES * settings.scheduler.cleanup_seconds
    return Ages(
        key=sweeps.min_age_seconds,
        upload=sweeps.min_age_seconds + passes,
        tombstone=sweeps.tombstone_seconds + passes,
        staging=settings.staging.max_age_seconds + passes,
    )


def _look(parts: Parts, late: float, ages: Ages, *, deep: bool) -> Iterator[Breach]:
    engine = parts.engine.execution_options(read_only=True)
    with Session(engine) as session:
        now = _now(session)
        yield from task_breaches(session, now=now, late_seconds=late)
        yield from row_breaches(
            session,
            now=now,
            late_seconds=late,
            sweep_seconds=ages.upload,
            serves_deletions=parts.catalogue.serves("delete"),
        )
        fetch = parts.settings.fetch
        policy = FetchPolicy(ports=fetch.ports, allow=fetch.allow)
        yield from hop_breaches(session, policy)
        session.rollback()
        stores = Stores(channels=parts.channels, staging=parts.staging, ages=ages, is_deep=deep)
        yield from byte_breaches(session, stores)


def _now(session: Session) -> dt.datetime:
    now: dt.datetime | str = session.execute(sa.select(utc_clock())).scalar_one()
    return dt.datetime.fromisoformat(now) if isinstance(now, str) else now
