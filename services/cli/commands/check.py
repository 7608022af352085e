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
from shared.catalog.channels import list_channels
from shared.catalog.invariants.bytes import Stores, byte_breaches
from shared.catalog.invariants.rows import row_breaches
from shared.catalog.models import utc_clock
from shared.outbox.invariants import Breach, task_breaches
from shared.runtime.assembly import Parts
from shared.runtime.settings import Settings

#: Seconds between two looks: what is seen once only was on its way.
_SETTLE_SECONDS = 1.0


def check(
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every stored copy back and compare its SHA-256.")
    ] = False,
    late_seconds: Annotated[
        float | None,
        typer.Option(help="What is late by less is on its way; default: two scans and a lease."),
    ] = None,
    min_age_seconds: Annotated[
        float | None,
        typer.Option(help="Unnamed bytes that are younger are on their way; default: the sweeps'."),
    ] = None,
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = Path(".blox"),
) -> int:
    """List broken invariants; exit 1 if there are any.

    Meant for a quiet system. Under load, what two looks a second apart agree on is listed.
    """
    with open_parts(directory) as parts:
        outbox = parts.settings.outbox
        late = late_seconds
        if late is None:
            late = 2 * outbox.scan_seconds + max(outbox.lease_seconds, outbox.recovery_max_seconds)
        age, staging_age = _ages(parts.settings, min_age_seconds)
        breaches = list(_look(parts, late, (age, staging_age), deep=deep))
        if breaches:
            threading.Event().wait(_SETTLE_SECONDS)
            again = {
                (item.invariant, item.subject)
                for item in _look(parts, late, (age, staging_age), deep=deep)
            }
            breaches = [item for item in breaches if (item.invariant, item.subject) in again]
    show_rows(
        [asdict(item) for item in breaches],
        ("invariant", "subject", "detail"),
        output,
        empty="every invariant holds",
    )
    return 1 if breaches else 0


def _ages(settings: Settings, wanted: float | None) -> tuple[float, float]:
    """Return from which age on keys on channels, and files in staging, must be named."""
    if wanted is not None:
        return wanted, wanted
    # The clean-up takes what two of its passes agree on.
    clean_up = settings.staging.max_age_seconds + 3 * settings.scheduler.cleanup_seconds
    return settings.sweeps.min_age_seconds, clean_up


def _look(parts: Parts, late: float, ages: tuple[float, float], *, deep: bool) -> Iterator[Breach]:
    engine = parts.engine.execution_options(read_only=True)
    with Session(engine) as session:
        now = _now(session)
        yield from task_breaches(session, now=now, late_seconds=late)
        yield from row_breaches(session, now=now, late_seconds=late)
        names = tuple(record.name for record in list_channels(session) if record.is_enabled)
        session.rollback()
        stores = Stores(parts.channels, parts.staging, names, *ages, is_deep=deep)
        yield from byte_breaches(session, stores)


def _now(session: Session) -> dt.datetime:
    now: dt.datetime | str = session.execute(sa.select(utc_clock())).scalar_one()
    return dt.datetime.fromisoformat(now) if isinstance(now, str) else now
