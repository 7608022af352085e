"""Ends of tasks that the catalogue has not heard of: settle tasks, made for them or made anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import (
    Bucket,
    Review,
    ReviewState,
    SessionState,
    UploadSession,
    Version,
    VersionState,
    by_index,
)
from shared.catalog.sweeps.backups import open_work
from shared.catalog.sweeps.context import PAGE_ROWS, Pass, SweepContext
from shared.catalog.sweeps.open_rows import open_removals
from shared.catalog.sweeps.origins import page_of_open_pulls
from shared.core.errors import BloxError
from shared.outbox.schema import tasks
from shared.outbox.settling import SettleTask, kind_of
from shared.outbox.states import State

#: Queues whose kinds have hooks.
_QUEUES = ("backup", "delete", "notify", "origin", "replica", "restore", "review", "upload")


class Unfinished(NamedTuple):
    """A version that waits for its task."""

    version_id: int
    task_id: int | None


class Waiting(NamedTuple):
    """An upload session that waits for its assembly."""

    session_id: int
    task_id: int | None


class Ended(NamedTuple):
    """A task that ended without completing."""

    task_id: int
    queue: str
    tenant_id: str


class EndSweep:
    """Finds failed settle tasks, and unfinished rows whose task has failed or was cancelled.

    `retry` gives a failed task a new life; `Outbox.retry` with its reason bound. An end and its
    hook are one commit, so only what two passes find is taken for unheard of.
    """

    name = "ends"

    def __init__(self, context: SweepContext, *, retry: Callable[[int], object]) -> None:
        self._db = context.db
        self._tasks = context.catalogue.tasks
        self._limits = context.limits
        self._retry = retry
        self._seen: frozenset[Ended] = frozenset()

    def run(self, turn: Pass) -> None:
        """Make one pass."""
        for task_id in self._db.run_session(_failed_settles, read_only=True):
            turn.check()
            turn.counts["settles_failed"] += 1
            self._again(task_id, turn)
        unheard = frozenset(self._unheard(turn))
        agreed, self._seen = sorted(unheard & self._seen), unheard
        for ended in agreed:
            turn.counts["unheard"] += 1
            self._settle(ended)

    def _again(self, task_id: int, turn: Pass) -> None:
        if self._limits.dry_run:
            return
        try:
            self._retry(task_id)
        except BloxError:
            # Another process was faster, or a newer one waits for the same task.
            turn.counts["settles_refused"] += 1

    def _settle(self, ended: Ended) -> None:
        if self._limits.dry_run:
            return
        self._db.run_session(
            lambda session: self._tasks.enqueue(
                session,
                kind_of(ended.queue),
                SettleTask(task_id=ended.task_id),
                tenant_id=ended.tenant_id,
                dedupe_key=f"settle:{ended.task_id}",
            )
        )

    def _unheard(self, turn: Pass) -> Iterable[Ended]:
        for bucket_id in self._db.run_session(_bucket_ids, read_only=True):
            for state in (VersionState.PENDING, VersionState.REVIEWING):
                after = 0
                while page := self._page(bucket_id, state, after):
                    turn.check()
                    after = page[-1].version_id
                    yield from self._ended([one.task_id for one in page if one.task_id])
        last = 0
        while waiting := self._assemblies(last):
            turn.check()
            last = waiting[-1].session_id
            yield from self._ended([one.task_id for one in waiting if one.task_id])

        last = 0
        while pulls := self._pulls(last):
            turn.check()
            last = pulls[-1][0]
            yield from self._ended([task_id for _, task_id in pulls if task_id])

        for page_of_work in chain(open_work(self._db), open_removals(self._db)):
            turn.check()
            yield from self._ended([task_id for _, task_id in page_of_work if task_id])

    def _pulls(self, after: int) -> Sequence[tuple[int, int | None]]:
        return self._db.run_session(
            lambda session: page_of_open_pulls(session, after), read_only=True
        )

    def _assemblies(self, after: int) -> Sequence[Waiting]:
        return self._db.run_session(lambda session: page_of_waiting(session, after), read_only=True)

    def _page(self, bucket_id: int, state: VersionState, after: int) -> Sequence[Unfinished]:
        return self._db.run_session(
            lambda session: page_of_unfinished(session, bucket_id, state, after), read_only=True
        )

    def _ended(self, task_ids: Sequence[int]) -> Sequence[Ended]:
        return self._db.run_session(lambda session: _ended(session, task_ids), read_only=True)


def _failed_settles(session: Session) -> Sequence[int]:
    return session.scalars(
        sa.select(tasks.c.id)
        .where(
            tasks.c.state == State.FAILED.value,
            tasks.c.kind.in_([kind_of(queue).name for queue in _QUEUES]),
        )
        .order_by(tasks.c.id)
        .limit(PAGE_ROWS)
    ).all()


def _bucket_ids(session: Session) -> Sequence[int]:
    return session.scalars(sa.select(Bucket.id).order_by(Bucket.id)).all()


def page_of_unfinished(
    session: Session, bucket_id: int, state: VersionState, after: int
) -> Sequence[Unfinished]:
    """Return a page of a bucket's versions in this state, those with an id above `after`."""
    statement = (
        sa.select(Version.id, Version.task_id)
        .where(Version.bucket_id == bucket_id, Version.state == state, Version.id > after)
        .order_by(Version.id)
        .limit(PAGE_ROWS)
    )
    statement = by_index(statement, Version, "ix_versions_bucket")
    if state == VersionState.REVIEWING:
        # One that waits for a person has no task, and its last one may have failed.
        statement = statement.join(Review, Review.version_id == Version.id).where(
            Review.run_id == 0, Review.state == ReviewState.OPEN
        )
    return [Unfinished(*row) for row in session.execute(statement)]


def page_of_waiting(session: Session, after: int) -> Sequence[Waiting]:
    """Return a page of the sessions that are completing, those with an id above `after`."""
    statement = (
        sa.select(UploadSession.id, UploadSession.task_id)
        .where(
            UploadSession.state == SessionState.COMPLETING,
            UploadSession.expires_at.is_(None),
            UploadSession.id > after,
        )
        .order_by(UploadSession.id)
        .limit(PAGE_ROWS)
    )
    statement = by_index(statement, UploadSession, "ix_upload_sessions_expiry")
    return [Waiting(*row) for row in session.execute(statement)]


def _ended(session: Session, task_ids: Sequence[int]) -> Sequence[Ended]:
    rows = session.execute(
        sa.select(tasks.c.id, tasks.c.queue, tasks.c.tenant_id).where(
            tasks.c.id.in_(task_ids),
            tasks.c.state.in_([State.FAILED.value, State.CANCELLED.value]),
        )
    )
    return [Ended(*row) for row in rows]
