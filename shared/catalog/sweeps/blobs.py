"""Blobs whose delete task is not there, and staged blobs that nobody fills any more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.blobs import dispose_staged, enqueue_delete
from shared.catalog.context import Catalogue
from shared.catalog.locking import lock_blobs
from shared.catalog.models import (
    Blob,
    BlobState,
    Version,
    VersionState,
    by_index,
    utc_clock,
    utc_now,
)
from shared.catalog.sweeps.context import PAGE_ROWS, Pass, SweepContext
from shared.outbox.schema import tasks
from shared.outbox.states import ACTIVE

#: Versions in one of these want their staged blob; a blocked one while its bytes are kept.
_WANTING = (VersionState.PENDING, VersionState.REVIEWING, VersionState.FAILED)


class Waiting(NamedTuple):
    """A blob that should not stay as it is, and the task that takes it on, if one does."""

    id: int
    generation: int
    delete_owner: int | None


class BlobSweep:
    """Gives condemned and deleting blobs their tasks, gives up staged ones without a version."""

    name = "blobs"

    def __init__(self, context: SweepContext) -> None:
        self._db = context.db
        self._catalogue = context.catalogue
        self._limits = context.limits

    def run(self, turn: Pass) -> None:
        """Make one pass. It removes no bytes itself."""
        served = self._catalogue.serves("delete")
        for state in (BlobState.CONDEMNED, BlobState.DELETING) if served else ():
            for page in self._pages(state, turn):
                for blob in self._without_task(page, state):
                    turn.counts[f"{state}_without_task"] += 1
                    self._give_task(blob)
        for page in self._pages(BlobState.STAGED, turn):
            for blob in self._unwanted(page):
                turn.counts["staged_unwanted"] += 1
                self._give_up(blob.id)

    def _pages(self, state: BlobState, turn: Pass) -> Iterator[Sequence[Waiting]]:
        after = 0
        while page := self._page(state, after):
            turn.check()
            after = page[-1].id
            yield page

    def _page(self, state: BlobState, after: int) -> Sequence[Waiting]:
        statement = (
            sa.select(Blob.id, Blob.generation, Blob.delete_owner)
            .where(Blob.state == state, Blob.id > after)
            .order_by(Blob.id)
            .limit(PAGE_ROWS)
        )
        if state == BlobState.STAGED:
            # Young ones may be between two steps of a request.
            statement = statement.where(Blob.created_at <= utc_now(-self._limits.min_age_seconds))
        statement = by_index(statement, Blob, "ix_blobs_state")
        return self._db.run_session(
            lambda session: [Waiting(*row) for row in session.execute(statement)], read_only=True
        )

    def _without_task(self, page: Sequence[Waiting], state: BlobState) -> list[Waiting]:
        return self._db.run_session(
            lambda session: without_task(session, page, state), read_only=True
        )

    def _unwanted(self, page: Sequence[Waiting]) -> list[Waiting]:
        return self._db.run_session(lambda session: _unwanted(session, page), read_only=True)

    def _give_task(self, blob: Waiting) -> None:
        if not self._limits.dry_run:
            self._db.run_session(lambda session: give_task(session, self._catalogue, blob))

    def _give_up(self, blob_id: int) -> None:
        if not self._limits.dry_run:
            self._db.run_session(lambda session: _give_up(session, self._catalogue, blob_id))


def without_task(session: Session, page: Sequence[Waiting], state: BlobState) -> list[Waiting]:
    """Return the blobs for which no unfinished delete task is there.

    A condemned blob's task is known by its dedupe key, a deleting one's by its owner.
    """
    if state == BlobState.CONDEMNED:
        keys = {f"blob:{blob.id}:{blob.generation}": blob for blob in page}
        found = session.scalars(
            sa.select(tasks.c.dedupe_active).where(
                tasks.c.queue == "delete", tasks.c.dedupe_active.in_(sorted(keys))
            )
        )
        active = {key for key in found if key is not None}
        return [blob for key, blob in keys.items() if key not in active]
    owners = session.scalars(
        sa.select(tasks.c.id).where(
            tasks.c.id.in_(sorted({blob.delete_owner or 0 for blob in page})),
            tasks.c.state.in_(sorted(ACTIVE)),
        )
    )
    living = set(owners)
    return [blob for blob in page if blob.delete_owner not in living]


def give_task(session: Session, catalogue: Catalogue, seen: Waiting) -> None:
    """Enqueue a delete task for a blob that is still as it was seen; for `deleting`, its owner."""
    blob = lock_blobs(session, [seen.id]).get(seen.id)
    if blob is None or blob.generation != seen.generation:
        return
    state = BlobState(blob.state)
    if state not in (BlobState.CONDEMNED, BlobState.DELETING) or not without_task(
        session, [Waiting(blob.id, blob.generation, blob.delete_owner)], state
    ):
        return
    if state is BlobState.CONDEMNED:
        now = session.scalar(sa.select(utc_clock()))
        due = blob.delete_after
        left = (due - now).total_seconds() if due is not None and now is not None else 0.0
        enqueue_delete(session, catalogue, blob, delay_seconds=max(0.0, left))
    else:
        blob.delete_owner = enqueue_delete(session, catalogue, blob, delay_seconds=0.0)
        session.flush()


def _unwanted(session: Session, page: Sequence[Waiting]) -> list[Waiting]:
    wanted = set(
        session.scalars(
            sa.select(Version.blob_id).where(
                Version.blob_id.in_([blob.id for blob in page]),
                sa.or_(
                    Version.state.in_(_WANTING),
                    sa.and_(
                        Version.state == VersionState.BLOCKED, Version.staging_key.is_not(None)
                    ),
                ),
            )
        )
    )
    return [blob for blob in page if blob.id not in wanted]


def _give_up(session: Session, catalogue: Catalogue, blob_id: int) -> None:
    blob = lock_blobs(session, [blob_id]).get(blob_id)
    if blob is not None and not _wanted(session, blob_id):
        dispose_staged(session, catalogue, blob)


def _wanted(session: Session, blob_id: int) -> bool:
    return not _unwanted(session, [Waiting(blob_id, 0, None)])
