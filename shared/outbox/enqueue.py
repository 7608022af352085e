"""Putting a task into the caller's own transaction, and nothing into Redis before its commit.

The row is written on the driver's cursor of the caller's Session; what follows the commit (the
push, or the bell of the filler) is handed to the dispatcher thread by a hook of the Session.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pydantic
from sqlalchemy.orm import Session

from shared.core.clock import monotonic
from shared.core.errors import InvalidError
from shared.outbox.after_commit import after_commit
from shared.outbox.births import DEFAULTS, Births, Born, Credits, Litter
from shared.outbox.db import Database
from shared.outbox.kinds import Kind, Kinds
from shared.outbox.options import Options
from shared.outbox.records import add_events
from shared.outbox.settings import OutboxSettings
from shared.outbox.statements import enqueue as statements
from shared.outbox.states import State

if TYPE_CHECKING:
    from shared.outbox.dispatcher import Dispatch, LaneNote

#: Rows that one INSERT carries: ids of a longer statement could not be told from `lastrowid`.
ROWS_PER_INSERT = 500
#: Characters of payload in one INSERT. A server takes no packet above its limit, 16 MiB by default,
#: and a character may have four bytes there.
CHARACTERS_PER_INSERT = 2 * 1024 * 1024
#: A row that is older than this at its commit may lie below what the filler has read already.
LATE_SECONDS = 3.0
_INFO = "shared.outbox.after_commit"
_DUPLICATE = frozenset({1062})


class AfterCommit(Protocol):
    """Where the work that follows a commit goes. Must not block."""

    def submit(
        self,
        dispatches: Sequence[Dispatch],
        lanes: Sequence[LaneNote],
        late_seconds: float = 0.0,
    ) -> None:
        """Take dispatches to push and lanes whose pending rows wait for the filler.

        `late_seconds`, when not 0, is how long before its commit the first of those was written.
        """


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The task's id, and whether this call created it (False: its key named one already)."""

    id: int
    created: bool


class Enqueuer:
    """Writes task rows for one outbox."""

    def __init__(
        self,
        *,
        db: Database,
        kinds: Kinds,
        settings: OutboxSettings,
        credits: Credits,
        after_commit: AfterCommit,
    ) -> None:
        self._db = db
        self._kinds = kinds
        self._settings = settings
        self._births = Births(db.dialect, settings, credits)
        self._after_commit = after_commit
        # Credits and messages are only for those who have a dispatcher running.
        self.is_producing = False

    def begin(self) -> None:
        """Begin to use credits: a dispatcher runs."""
        self._births.begin()
        self.is_producing = True

    def enqueue(
        self,
        session: Session,
        kind: Kind[Any] | str,
        payload: pydantic.BaseModel | Mapping[str, Any],
        **options: Any,
    ) -> Enqueued:
        """Write one task in the session's transaction; see `Options` for the keywords.

        A dedupe key that an active task holds, or an idempotency key seen within seven days, gives
        that task's id with `created` False and writes nothing. Raises InvalidError for a payload
        or an option that does not fit.
        """
        kind = self._kinds.get(kind)
        chosen = Options(**options) if options else DEFAULTS
        body = kind.dump(payload)
        after = _after_commit_of(session, self._after_commit)
        with self._db.cursor_in(session) as cursor:
            if chosen.dedupe_key is not None or chosen.idempotency_key is not None:
                found = self._find(cursor, kind, chosen)
                if found is not None:
                    return Enqueued(found, created=False)
            litter = self._births.litter(kind, chosen)
            row = litter.row(body, may_dispatch=self.is_producing)
            try:
                cursor.execute(statements.INSERT + row.mark, row.values)
            except Exception as error:
                found = self._lost_race(cursor, kind, chosen, error)
                if found is None:
                    raise
                return Enqueued(found, created=False)
            task_id = int(cursor.lastrowid)
            if kind.events:
                self._record_birth(cursor, [(task_id, row)])
        self._remember(after, kind, chosen, litter, [(task_id, row)])
        return Enqueued(task_id, created=True)

    def enqueue_many(
        self,
        session: Session,
        kind: Kind[Any] | str,
        payloads: Iterable[pydantic.BaseModel | Mapping[str, Any]],
        **options: Any,
    ) -> list[Enqueued]:
        """Write many tasks of one kind and the same options in few statements.

        Keys make no sense here and are refused. The order of the answers is that of the payloads.
        """
        kind = self._kinds.get(kind)
        chosen = Options(**options)
        if chosen.dedupe_key is not None or chosen.idempotency_key is not None:
            raise InvalidError("enqueue_many takes no dedupe_key and no idempotency_key")
        bodies = [kind.dump(payload) for payload in payloads]
        after = _after_commit_of(session, self._after_commit)
        litter = self._births.litter(kind, chosen)
        may_dispatch = self.is_producing
        answers: list[Enqueued] = []
        with self._db.cursor_in(session) as cursor:
            for batch in _batches(bodies):
                rows: list[Born] = []
                for body in batch:
                    row = litter.row(body, may_dispatch=may_dispatch)
                    # Once one waits, the next ones must not overtake it.
                    may_dispatch = row.dispatch_id is not None
                    rows.append(row)
                cursor.execute(
                    statements.INSERT + ",".join([row.mark for row in rows]),
                    [value for row in rows for value in row.values],
                )
                born = list(zip(self._ids(cursor, len(rows)), rows, strict=True))
                if kind.events:
                    self._record_birth(cursor, born)
                self._remember(after, kind, chosen, litter, born)
                answers += [Enqueued(task_id, created=True) for task_id, _ in born]
        return answers

    def _record_birth(self, cursor: Any, born: Sequence[tuple[int, Born]]) -> None:
        events = [
            (task_id, row.state, f'{{"from": null, "to": "{row.state}"}}') for task_id, row in born
        ]
        add_events(cursor, self._db.dialect, events)

    def _ids(self, cursor: Any, count: int) -> range:
        # Both databases give one statement consecutive ids; MySQL names the first, SQLite the last.
        last = int(cursor.lastrowid)
        if self._db.dialect.name == "sqlite":
            return range(last - count + 1, last + 1)
        cursor.execute("SELECT @@auto_increment_increment")
        step = int(cursor.fetchone()[0])
        return range(last, last + count * step, step)

    def _remember(
        self,
        after: _AfterCommit,
        kind: Kind[Any],
        chosen: Options,
        litter: Litter,
        born: Sequence[tuple[int, Born]],
    ) -> None:
        expires = monotonic() + self._births.lease_seconds
        is_waiting = False
        for task_id, row in born:
            if row.dispatch_id is not None:
                after.dispatches.append((litter.queue_name, task_id, row.dispatch_id, expires))
            elif row.state == State.PENDING.value:
                is_waiting = True
        if not is_waiting:
            return
        if self.is_producing:
            self._births.credits.mark_backlog(litter.queue_name, chosen.tenant_id)
        if not after.lanes:
            after.pending_since = monotonic()
        after.lanes.append((kind.queue, chosen.region, chosen.tenant_id, chosen.priority))

    def _find(self, cursor: Any, kind: Kind[Any], chosen: Options) -> int | None:
        sql = self._db.dialect.sql
        if chosen.idempotency_key is not None:
            cursor.execute(
                sql(statements.FIND_IDEMPOTENT), (chosen.tenant_id, chosen.idempotency_key)
            )
            found = cursor.fetchone()
            if found:
                return int(found[0])
        if chosen.dedupe_key is not None:
            cursor.execute(sql(statements.FIND_ACTIVE), (kind.queue, chosen.dedupe_key))
            found = cursor.fetchone()
            if found:
                return int(found[0])
        return None

    def _lost_race(
        self, cursor: Any, kind: Kind[Any], chosen: Options, error: Exception
    ) -> int | None:
        # Another transaction took the key between our look and our insert. Its commit is what the
        # refusal waited for, and READ COMMITTED shows it to this look.
        args: tuple[Any, ...] = getattr(error, "args", ())
        is_duplicate = len(args) > 0 and (
            args[0] in _DUPLICATE or "UNIQUE constraint" in str(args[0])
        )
        return self._find(cursor, kind, chosen) if is_duplicate else None


def _batches(bodies: Sequence[str]) -> Iterator[list[str]]:
    """Cut payloads into those of one statement each."""
    batch: list[str] = []
    size = 0
    for body in bodies:
        if len(batch) == ROWS_PER_INSERT or (batch and size + len(body) > CHARACTERS_PER_INSERT):
            yield batch
            batch, size = [], 0
        batch.append(body)
        size += len(body)
    if batch:
        yield batch


class _AfterCommit:
    """What one transaction of one session leaves to do after its commit."""

    __slots__ = ("dispatches", "lanes", "pending_since", "root", "target")

    def __init__(self, root: Any, target: AfterCommit) -> None:
        self.root = root
        self.target = target
        self.dispatches: list[Dispatch] = []
        self.lanes: list[LaneNote] = []
        self.pending_since = 0.0

    def submit(self) -> None:
        """Hand it on. Rows of a savepoint that was rolled back: their messages find no row."""
        age = monotonic() - self.pending_since if self.lanes else 0.0
        if age > LATE_SECONDS:
            self.target.submit(self.dispatches, self.lanes, age)
        else:
            self.target.submit(self.dispatches, self.lanes)


def _after_commit_of(session: Session, target: AfterCommit) -> _AfterCommit:
    if not isinstance(session, Session):
        raise TypeError("enqueue needs a SQLAlchemy Session: its commit is what starts the task")
    if not session.in_transaction():
        session.begin()
    root = session.get_transaction()
    entries: dict[int, _AfterCommit] = session.info.setdefault(_INFO, {})
    entry = entries.get(id(target))
    if entry is None or entry.root is not root or entry.target is not target:
        entry = entries[id(target)] = _AfterCommit(root, target)
        after_commit(session, entry.submit, outlives_savepoints=True)
    return entry
