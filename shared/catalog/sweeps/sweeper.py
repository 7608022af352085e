"""One pass of all sweeps. A sweep that fails stops itself, not the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from shared.catalog.sweeps.answers import AnswerSweep
from shared.catalog.sweeps.backups import BackupSweep
from shared.catalog.sweeps.blobs import BlobSweep
from shared.catalog.sweeps.bodies import BodySweep
from shared.catalog.sweeps.context import Pass, SweepContext
from shared.catalog.sweeps.ends import EndSweep
from shared.catalog.sweeps.holds import HoldSweep
from shared.catalog.sweeps.locations import LocationSweep
from shared.catalog.sweeps.notifications import NotificationSweep
from shared.catalog.sweeps.origins import OriginSweep
from shared.catalog.sweeps.rereviews import RereviewSweep
from shared.catalog.sweeps.reviews import ReviewSweep
from shared.catalog.sweeps.sessions import SessionSweep
from shared.catalog.sweeps.staging import StagingSweep
from shared.catalog.sweeps.uploads import UploadSweep
from shared.core.clock import Deadline
from shared.core.errors import StopError

_log = structlog.get_logger("catalog.sweeps")


class Sweep(Protocol):
    """One sweep; it may remember what its last pass found."""

    @property
    def name(self) -> str:
        """Return the word under which its counts are reported."""
        ...

    def run(self, turn: Pass) -> None:
        """Make one pass."""
        ...


@dataclass(frozen=True, slots=True)
class Report:
    """What one pass did, per sweep, and which sweeps failed with what."""

    counts: Mapping[str, Counter[str]] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)


class Sweeper:
    """Runs the sweeps of one process, again and again. Several processes may do so at once.

    `retry` gives a failed task a new life (`Outbox.retry`).
    """

    def __init__(self, context: SweepContext, *, retry: Callable[[int], object]) -> None:
        self._context = context
        # What was decided first, then what that frees.
        self._sweeps: tuple[Sweep, ...] = (
            EndSweep(context, retry=retry),
            ReviewSweep(context),
            RereviewSweep(context),
            HoldSweep(context),
            BlobSweep(context),
            LocationSweep(context),
            BackupSweep(context),
            UploadSweep(context),
            BodySweep(context),
            SessionSweep(context),
            OriginSweep(context),
            StagingSweep(context),
            AnswerSweep(context),
            NotificationSweep(context),
        )

    def run_once(self, *, deadline: Deadline, check: Callable[[], None]) -> Report:
        """Make one pass of every sweep. `check` raises a StopError to end it early."""
        counts: dict[str, Counter[str]] = {}
        errors: dict[str, str] = {}
        for sweep in self._sweeps:
            turn = Pass(sweep.name, self._context.limits, deadline, check)
            counts[sweep.name] = turn.counts
            try:
                check()
                sweep.run(turn)
            except StopError:
                raise
            except Exception as error:
                _log.exception("sweep_failed", sweep=sweep.name)
                errors[sweep.name] = f"{type(error).__name__}: {error}"
        return Report(counts, errors)
