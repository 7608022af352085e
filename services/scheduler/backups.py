"""Backups and restores that fall due: runs of buckets with a rule, pins held too long, losses.

Safe on many schedulers at once: a slot has one run by its unique key, and all else is asked again
under its rows' locks.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import sqlalchemy as sa
import structlog
from sqlalchemy.orm import Session

from services.scheduler.clock import Tick
from services.scheduler.telling import tell
from shared.catalog.backups.pins import overdue_runs, release_page, runs_with_pins
from shared.catalog.backups.runs import fail_overdue, open_run, policy_of, time_slot
from shared.catalog.context import Catalogue
from shared.catalog.models import (
    BackupRun,
    BackupRunState,
    Bucket,
    Loss,
    LossState,
    Restore,
    utc_clock,
    utc_now,
)
from shared.catalog.restores.losses import losses_to_try, try_again
from shared.core.errors import ConflictError, NotFoundError, ShuttingDown
from shared.outbox.db import Database
from shared.runtime.assembly import Parts
from shared.runtime.metrics import Metrics

#: Buckets, and losses, that one look reads.
PAGE_ROWS = 200
#: Losses that one turn gives tasks to.
MOST_LOSSES = 1000

_log = structlog.get_logger("scheduler.backups")


class BackupJob:
    """One process's turns."""

    def __init__(self, db: Database, catalogue: Catalogue) -> None:
        self._db, self._catalogue = db, catalogue

    def run_once(self, check: Callable[[], None] = lambda: None) -> Counter[str]:
        """Make one turn; returns what was done. `check` raises a StopError to end it early."""
        counts: Counter[str] = Counter()
        if self._catalogue.serves("backup"):
            self._open_due(counts, check)
        self._end_overdue(counts, check)
        if self._catalogue.serves("restore"):
            self._try_losses(counts, check)
        return counts

    def _open_due(self, counts: Counter[str], check: Callable[[], None]) -> None:
        after = 0
        while page := self._page(after):
            after = page[-1]
            for bucket_id in page:
                check()
                counts["opened"] += self._open(bucket_id)

    def _page(self, after: int) -> Sequence[int]:
        return self._db.run_session(
            lambda session: session.scalars(
                sa.select(Bucket.id)
                .where(Bucket.id > after, Bucket.backup.is_not(None))
                .order_by(Bucket.id)
                .limit(PAGE_ROWS)
            ).all(),
            read_only=True,
        )

    def _open(self, bucket_id: int) -> bool:
        slot = self._db.run_session(lambda session: due_slot(session, bucket_id), read_only=True)
        if slot is None:
            return False
        try:
            run = self._db.run_session(
                lambda session: open_run(session, self._catalogue, bucket_id, slot=slot)
            )
        except (ConflictError, NotFoundError) as error:
            # Another scheduler was faster, or the last run is still open: the next slot comes.
            _log.info("backup_not_opened", bucket_id=bucket_id, slot=slot, reason=error.code)
            return False
        _log.info("backup_opened", bucket_id=bucket_id, run_id=run.id, slot=slot)
        return True

    def _end_overdue(self, counts: Counter[str], check: Callable[[], None]) -> None:
        for run_id in self._db.run_session(overdue_runs, read_only=True):
            fail = partial(fail_overdue, catalogue=self._catalogue, run_id=run_id)
            if self._db.run_session(fail):
                counts["overdue"] += 1
                _log.error("backup_pins_expired", run_id=run_id)
        for run_id in self._db.run_session(runs_with_pins, read_only=True):
            release = partial(release_page, catalogue=self._catalogue, run_id=run_id)
            while self._db.run_session(release):
                check()
                counts["pages_released"] += 1

    def _try_losses(self, counts: Counter[str], check: Callable[[], None]) -> None:
        losses = self._db.run_session(
            lambda session: losses_to_try(session, limit=MOST_LOSSES), read_only=True
        )
        for loss_id in losses:
            check()
            self._db.run_session(partial(try_again, catalogue=self._catalogue, loss_id=loss_id))
            counts["losses_tried"] += 1

    def count_backups(self) -> dict[str, int]:
        """Return how many buckets' newest backups failed, or lack contents."""
        return self._db.run_session(newest_backups, read_only=True)

    def count_unrestored(self) -> int:
        """Return how many keys restores of the last day could not bring back."""
        return self._db.run_session(unrestored_keys, read_only=True)

    def count_losses(self) -> dict[str, int]:
        """Return how many copies are lost, by state, those that are restored left out."""

        def read(session: Session) -> dict[str, int]:
            states = (LossState.OPEN, LossState.UNRECOVERABLE, LossState.FAILED)
            found = session.execute(
                sa.select(Loss.state, sa.func.count())
                .where(Loss.state.in_(states))
                .group_by(Loss.state)
            )
            return {**{str(state): 0 for state in states}, **{row[0]: row[1] for row in found}}

        return self._db.run_session(read, read_only=True)


def newest_backups(session: Session) -> dict[str, int]:
    """Return of how many buckets the newest backup is `whole`, `incomplete` or `failed`."""
    ended = (BackupRunState.COMPLETE, BackupRunState.FAILED)
    newest = (
        sa.select(sa.func.max(BackupRun.id).label("id"))
        .join(Bucket, Bucket.id == BackupRun.bucket_id)
        .where(Bucket.backup.is_not(None), BackupRun.state.in_(ended))
        .group_by(BackupRun.bucket_id)
        .subquery()
    )
    lacks = sa.or_(*(BackupRun.counts[name].as_integer() > 0 for name in ("lost", "failed")))
    state = sa.case(
        (BackupRun.state == BackupRunState.FAILED, "failed"), (lacks, "incomplete"), else_="whole"
    )
    found = session.execute(
        sa.select(state, sa.func.count())
        .select_from(BackupRun)
        .join(newest, newest.c.id == BackupRun.id)
        .group_by(state)
    )
    return {"whole": 0, "incomplete": 0, "failed": 0, **{row[0]: row[1] for row in found}}


def unrestored_keys(session: Session) -> int:
    """Count the keys for which restores that ended within a day found no bytes anywhere."""
    counts = session.scalars(
        sa.select(Restore.counts).where(
            Restore.ended_at >= utc_now(-86_400), Restore.is_dry_run == 0
        )
    )
    return sum(int((one or {}).get("unrecoverable", 0)) for one in counts)


def due_slot(session: Session, bucket_id: int) -> str | None:
    """Return the slot of a bucket's rule that a run is due for, None when it has its run.

    Slots that passed while nobody looked are one run: that of the present one.
    """
    policy = policy_of(session.get(Bucket, bucket_id))
    now = session.scalar(sa.select(utc_clock()))
    if policy is None or now is None:
        return None
    slot = time_slot(now, policy.interval_seconds)
    has_run = session.scalar(
        sa.select(
            sa.exists().where(
                BackupRun.bucket_id == bucket_id,
                BackupRun.target == policy.target,
                BackupRun.slot == slot,
            )
        )
    )
    return None if has_run else slot


def backups(parts: Parts, metrics: Metrics) -> Tick:
    """Open due runs, end overdue ones, give losses their tasks, count what is lost."""
    job = BackupJob(parts.outbox.context.db, parts.catalogue)
    gauge = metrics.gauge(
        "lost_copies", "Copies whose bytes are missing or damaged, until they are restored", "state"
    )

    newest = metrics.gauge("newest_backups", "Buckets by what their newest backup is", "state")
    unrestored = metrics.gauge(
        "unrestored_keys", "Keys that restores of the last day found no bytes for"
    )

    def act(stopping: threading.Event) -> None:
        def check() -> None:
            if stopping.is_set():
                raise ShuttingDown("the scheduler stops")

        counts = job.run_once(check)
        for state, count in job.count_losses().items():
            gauge.labels(state).set(count)
        for state, count in job.count_backups().items():
            newest.labels(state).set(count)
        unrestored.set(job.count_unrestored())
        tell(_log, "backups_looked_after", counts)

    return Tick(
        "backups",
        act,
        every_seconds=parts.settings.scheduler.backup_seconds,
        limit_seconds=parts.settings.health.loop_seconds,
    )
