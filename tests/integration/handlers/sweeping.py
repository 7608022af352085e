"""Sweeps without ages, pass by pass."""

from __future__ import annotations

from typing import Any

from shared.catalog.sweeps.context import SweepContext, SweepLimits
from shared.catalog.sweeps.sweeper import Report, Sweeper
from shared.core.clock import Deadline
from shared.outbox.manual import retry
from shared.outbox.settling import kind_of
from shared.storage.errors import ChannelUnavailable
from tests.support.handlers import Stand

DOWN = ChannelUnavailable("down")


def sweeper(stand: Stand, **limits: Any) -> Sweeper:
    """Return sweeps without ages, unless said otherwise."""
    chosen = {
        "min_age_seconds": 0.0,
        "staging_age_seconds": 0.0,
        "trash_seconds": 0.0,
        "tombstone_seconds": 0.0,
        **limits,
    }
    context = SweepContext(
        db=stand.db,
        catalogue=stand.catalogue,
        channels=stand.channels,
        staging=stand.staging,
        limits=SweepLimits(**chosen),
    )
    for queue in ("backup", "restore", "delete", "origin", "upload", "review"):
        stand.register(kind_of(queue))
    return Sweeper(context, retry=lambda task_id: retry(stand.bench.context, task_id, by="sweep"))


def passes(sweeps: Sweeper, count: int = 1) -> Report:
    """Make so many passes without an error; returns the last report."""
    report = Report()
    for _ in range(count):
        report = sweeps.run_once(deadline=Deadline(60), check=lambda: None)
        assert report.errors == {}
    return report


def states(stand: Stand) -> list[str]:
    return [location.state for location in stand.locations()]
