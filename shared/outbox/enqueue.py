"""Putting a task into the caller's own transaction, and nothing into Redis before its commit.

The row is written on the driver's cursor of the caller's Session; what follows the commit (the
push, or the bell of the filler) is handed to the dispatcher thread by a hook of the Session.
"""

from __future__ import annotations

import datetime as dt
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pydantic
from sqlalchemy.orm import Session

from shared.core.clock import monotonic, utc_now
from shared.core.errors import InvalidError
from shared.outbox.after_commit import after_commit
from shared.outbox.db import Database
from shared.outbox.kinds import Kind, Kinds
from shared.outbox.messages import queue_key
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


class Credits(Protocol):
    """What a producer asks before it may dispatch by itself."""

    def take(self, queue_name: str, tenant_id: str) -> bool:
        """Take one credit of this queue; False when none is held."""

    def mark_backlog(self, queue_name: str, tenant_id: str) -> None:
        """Remember that this tenant has a row waiting for the filler: it uses no credit."""


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


_DEFAULTS = Options()


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
        self._credits = credits
        self._after_commit = after_commit
        self._row = db.dialect.sql(statements.ROW)
        self._row_at = db.dialect.sql(statements.ROW_AT)
        # Credits and messages are only for those who have a dispatcher running.
        self.is_producing = False
        self._prefix = ""
        self._counter = 0
        self._counter_lock = threading.Lock()

    def begin(self) -> None:
        """Begin to use credits: a dispatcher runs. Names no dispatch as a forked twin would."""
        self._prefix = os.urandom(8).hex()
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
        chosen = Options(**options) if options else _DEFAULTS
        body = kind.dump(payload)
        after = _after_commit_of(session, self._after_commit)
        with self._db.cursor_in(session) as cursor:
            if chosen.dedupe_key is not None or chosen.idempotency_key is not None:
                found = self._find(cursor, kind, chosen)
                if found is not None:
                    return Enqueued(found, created=False)
            row = self._values(kind, body, chosen)
            text = statements.INSERT + (self._row if chosen.due_at is None else self._row_at)
            try:
                cursor.execute(text, row)
            except Exception as error:
                found = self._lost_race(cursor, kind, chosen, error)
                if found is None:
                    raise
                return Enqueued(found, created=False)
            task_id = int(cursor.lastrowid)
            if kind.events:
                self._record_birth(cursor, [(task_id, row)])
        self._remember(after, kind, chosen, row, task_id)
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
        mark = self._row if chosen.due_at is None else self._row_at
        answers: list[Enqueued] = []
        with self._db.cursor_in(session) as cursor:
            for batch in _batches(bodies):
                rows = [self._values(kind, body, chosen) for body in batch]
                cursor.execute(
                    statements.INSERT + ",".join([mark] * len(rows)),
                    [value for row in rows for value in row],
                )
                born = list(zip(self._ids(cursor, len(rows)), rows, strict=True))
                if kind.events:
                    self._record_birth(cursor, born)
                for task_id, row in born:
                    self._remember(after, kind, chosen, row, task_id)
                    answers.append(Enqueued(task_id, created=True))
        return answers

    def _record_birth(self, cursor: Any, born: Sequence[tuple[int, list[Any]]]) -> None:
        events = [(task_id, row[4], f'{{"from": null, "to": "{row[4]}"}}') for task_id, row in born]
        add_events(cursor, self._db.dialect, events)

    def _ids(self, cursor: Any, count: int) -> range:
        # Both databases give one statement consecutive ids; MySQL names the first, SQLite the last.
        last = int(cursor.lastrowid)
        if self._db.dialect.name == "sqlite":
            return range(last - count + 1, last + 1)
        cursor.execute("SELECT @@auto_increment_increment")
        step = int(cursor.fetchone()[0])
        return range(last, last + count * step, step)

    def _values(self, kind: Kind[Any], body: str, chosen: Options) -> list[Any]:
        due_at, delay = chosen.due_at, chosen.delay_seconds
        if due_at is not None and due_at.tzinfo is not None:
            due_at = due_at.astimezone(dt.UTC).replace(tzinfo=None)
        is_due = delay == 0 and (due_at is None or due_at <= utc_now())
        state, dispatch_id, lease = State.PENDING, None, None
        if not is_due:
            state = State.SCHEDULED
        elif self.is_producing and self._credits.take(
            queue_key(kind.queue, chosen.region), chosen.tenant_id
        ):
            state = State.DISPATCHING
            dispatch_id, lease = self._dispatch_id(), self._settings.dispatch_lease_seconds
        row: list[Any] = [
            kind.queue,
            chosen.region,
            kind.name,
            chosen.tenant_id,
            state.value,
            chosen.priority,
            body,
            chosen.dedupe_key,
            chosen.idempotency_key,
            chosen.parent_id,
            chosen.max_attempts or kind.retry.max_attempts,
            dispatch_id,
            chosen.trace,
        ]
        if due_at is None:
            row += [delay, delay, lease]
        else:
            when = self._db.dialect.from_time(due_at)
            row += [when, when, lease]
        return row

    def _dispatch_id(self) -> str:
        with self._counter_lock:
            self._counter += 1
            return f"{self._prefix}{self._counter:016x}"

    def _remember(
        self,
        after: _AfterCommit,
        kind: Kind[Any],
        chosen: Options,
        row: list[Any],
        task_id: int,
    ) -> None:
        if row[4] == State.DISPATCHING.value:
            expires = monotonic() + self._settings.dispatch_lease_seconds
            after.dispatches.append(
                (queue_key(kind.queue, chosen.region), task_id, row[11], expires)
            )
        elif row[4] == State.PENDING.value:
            if self.is_producing:
                self._credits.mark_backlog(queue_key(kind.queue, chosen.region), chosen.tenant_id)
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
