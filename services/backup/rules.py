"""How long a run waits between two looks at its items, and which runs are kept. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import NamedTuple

from shared.catalog.backup_policy import BackupPolicy

#: A run looks again after a share of its age, between these.
LEAST_WAIT_SECONDS = 1.0
MOST_WAIT_SECONDS = 15.0
_SHARE = 0.1
#: No pruning sleeps longer than this at a time.
MOST_PRUNE_SECONDS = 6 * 3600.0


class Kept(NamedTuple):
    """A complete run, as far as retention asks."""

    run_id: int
    snapshot_at: dt.datetime
    #: It lacks no content, and its manifest is there.
    is_whole: bool = True


def wait_seconds(age_seconds: float) -> float:
    """Return how long a run waits for its items; the last of them wakes it earlier."""
    return min(MOST_WAIT_SECONDS, max(LEAST_WAIT_SECONDS, age_seconds * _SHARE))


def outlived(runs: Sequence[Kept], policy: BackupPolicy, *, now: dt.datetime) -> list[int]:
    """Return the complete runs that are kept no longer, given newest first.

    The newest one always stays: there would be nothing to restore from. So does the newest whole
    one: what the newer ones lack may be there and nowhere else.
    """
    gone = []
    best = next((run.run_id for run in runs if run.is_whole), None)
    for place, run in enumerate(runs):
        if place == 0 or run.run_id == best:
            continue
        is_surplus = policy.keep_runs is not None and place >= policy.keep_runs
        is_old = policy.keep_days is not None and run.snapshot_at < now - dt.timedelta(
            days=policy.keep_days
        )
        if is_surplus or is_old:
            gone.append(run.run_id)
    return gone
