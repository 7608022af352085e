"""Backup targets: intents of executions that are over, what is condemned there, late writes.

As the sweep of locations, for the table of what backups hold. And what backups and restores have
open, for the sweep of ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.backups.contents import lock_content_ids
from shared.catalog.backups.erasing import (
    due_contents,
    erase_content,
    note_probe,
    unprobed_contents,
)
from shared.catalog.erasing import PLACE_SECONDS, Place, erase_bytes
from shared.catalog.models import (
    BackupContent,
    BackupContentState,
    BackupItem,
    BackupItemState,
    BackupRun,
    BackupRunState,
    Loss,
    LossState,
    Restore,
    RestoreState,
    by_index,
    utc_now,
)
from shared.catalog.sweeps.context import PAGE_ROWS, Gone, Pass, SweepContext
from shared.catalog.sweeps.locations import Intent, is_over, read_writers
from shared.catalog.sweeps.open_rows import pages_of_open
from shared.core.failpoints import failpoint
from shared.outbox.db import Database
from shared.storage.errors import ChannelError

#: Tables with a task of their own, and the state in which they wait for it.
_OPEN: tuple[tuple[Any, str], ...] = (
    (BackupRun, BackupRunState.OPEN),
    (Loss, LossState.OPEN),
    (Restore, RestoreState.OPEN),
)


class BackupSweep:
    """Intents, condemned contents and tombstones of backup targets."""

    name = "backups"

    def __init__(self, context: SweepContext) -> None:
        self._db = context.db
        self._channels = context.channels
        self._limits = context.limits
        self._gone = Gone(self.name)

    def run(self, turn: Pass) -> None:
        """Make one pass. What it condemns loses its bytes in the next one."""
        self._erase(turn)
        self._condemn(turn)
        self._probe(turn)

    def _erase(self, turn: Pass) -> None:
        seen: set[int] = set()
        while not turn.is_over:
            page = self._db.run_session(
                lambda session: due_contents(session, target=None, limit=PAGE_ROWS), read_only=True
            )
            new = [place for place in page if place.location_id not in seen]
            if not new:
                return
            for place in new:
                seen.add(place.location_id)
                if turn.may_remove("erased", content_id=place.location_id, target=place.channel):
                    erase_content(self._db, self._channels, place, deadline=turn.deadline)

    def _condemn(self, turn: Pass) -> None:
        after, age_seconds = 0, self._limits.min_age_seconds
        while page := self._intents(after, age_seconds):
            after = page[-1].location_id
            writers = self._db.run_session(
                lambda session, some=page: read_writers(  # type: ignore[misc]
                    session, {one.task_id for one in some}
                ),
                read_only=True,
            )
            for intent in page:
                turn.check()
                if is_over(writers.get(intent.task_id), intent):
                    turn.counts["intents_over"] += 1
                    if not self._limits.dry_run:
                        turn.counts["condemned"] += self._db.run_session(
                            lambda session, one=intent: condemn(  # type: ignore[misc]
                                session, one.location_id
                            )
                        )
                        failpoint("sweep.content_condemned")

    def _intents(self, after: int, age_seconds: float) -> Sequence[Intent]:
        return self._db.run_session(
            lambda session: _page_of_intents(session, after, age_seconds), read_only=True
        )

    def _probe(self, turn: Pass) -> None:
        """Remove what a late write may have left under the key of a tombstone; once.

        A target that fails, or that the catalogue does not know, holds up no other.
        """
        away: set[str] = set()
        while not turn.is_over and (page := self._unprobed(away)):
            for place in page:
                if turn.is_full or turn.deadline.expired():
                    return
                if place.channel not in away and self._channels.find(place.channel) is None:
                    self._gone.note(place.channel)
                    away.add(place.channel)
                if place.channel not in away and turn.may_remove(
                    "probed", content_id=place.location_id, target=place.channel
                ):
                    away |= set() if self._probe_one(place, turn) else {place.channel}
            if self._limits.dry_run:
                return  # The same again and again.

    def _unprobed(self, away: set[str]) -> Sequence[Place]:
        age_seconds = self._limits.tombstone_seconds
        return self._db.run_session(
            lambda session: unprobed_contents(
                session, age_seconds=age_seconds, limit=PAGE_ROWS, away=away
            ),
            read_only=True,
        )

    def _probe_one(self, place: Place, turn: Pass) -> bool:
        found = self._channels.find(place.channel)
        if found is None:
            return False
        try:
            erase_bytes(found[0], place, deadline=turn.deadline.within(PLACE_SECONDS))
        except ChannelError:
            turn.counts["probes_failed"] += 1
            return False
        failpoint("sweep.content_probed")
        self._db.run_session(lambda session: note_probe(session, place.location_id))
        return True


def condemn(session: Session, content_id: int) -> bool:
    """Take an intent under its row lock, if the execution that wrote it is over; tells whether."""
    row = lock_content_ids(session, [content_id]).get(content_id)
    if row is None or row.state != BackupContentState.INTENT:
        return False
    writers = read_writers(session, [row.task_id])
    if not is_over(writers.get(row.task_id), Intent(row.id, row.key, row.task_id, row.fence)):
        return False
    row.state = BackupContentState.CONDEMNED
    session.flush()
    return True


def open_work(db: Database) -> Iterator[Sequence[tuple[int, int | None]]]:
    """Yield pages of (row, task) of what backups and restores have open."""
    for entity, state in _OPEN:
        yield from pages_of_open(db, entity, entity.state == state)
    working = (BackupRunState.OPEN.value, BackupRunState.FOLLOWING.value)
    runs = db.run_session(
        lambda session: session.scalars(
            sa.select(BackupRun.id).where(BackupRun.state.in_(working))
        ).all(),
        read_only=True,
    )
    for run_id in runs:
        is_open = BackupItem.state == BackupItemState.OPEN
        yield from pages_of_open(db, BackupItem, sa.and_(BackupItem.run_id == run_id, is_open))


def _page_of_intents(session: Session, after: int, age_seconds: float) -> Sequence[Intent]:
    statement = (
        sa.select(BackupContent.id, BackupContent.key, BackupContent.task_id, BackupContent.fence)
        .where(
            BackupContent.state == BackupContentState.INTENT,
            BackupContent.id > after,
            BackupContent.created_at <= utc_now(-age_seconds),
        )
        .order_by(BackupContent.id)
        .limit(PAGE_ROWS)
    )
    rows = session.execute(by_index(statement, BackupContent, "ix_backup_contents_state"))
    return [Intent(*row) for row in rows]
