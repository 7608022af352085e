"""The row of a task that is born: its state, and its values beside the marks they stand behind."""

from __future__ import annotations

import datetime as dt
import os
import threading
from typing import Any, NamedTuple, Protocol

from shared.core.clock import utc_now
from shared.outbox.dialect import Dialect
from shared.outbox.kinds import Kind
from shared.outbox.messages import queue_key
from shared.outbox.options import Options
from shared.outbox.settings import OutboxSettings
from shared.outbox.statements import enqueue as statements
from shared.outbox.states import State

#: Without options.
DEFAULTS = Options()


class Credits(Protocol):
    """What a producer asks before it may dispatch by itself."""

    def take(self, queue_name: str, tenant_id: str) -> bool:
        """Take one credit of this queue; False when none is held."""

    def mark_backlog(self, queue_name: str, tenant_id: str) -> None:
        """Remember that this tenant has a row waiting for the filler: it uses no credit."""


class Born(NamedTuple):
    """One row. `mark` is its part of the INSERT; `dispatch_id` is there when it goes to Redis."""

    mark: str
    values: list[Any]
    state: str
    dispatch_id: str | None


class Births:
    """Makes rows for one process. Thread-safe."""

    def __init__(self, dialect: Dialect, settings: OutboxSettings, credits: Credits) -> None:
        self.credits = credits
        self._dialect = dialect
        self._settings = settings
        self._prefix = ""
        self._counter = 0
        self._lock = threading.Lock()
        #: Shapes are few; their texts are made once.
        self._marks: dict[tuple[Any, ...], str] = {}
        #: What makes the rows of each kind without options.
        self._plain: dict[str, Litter] = {}

    def begin(self) -> None:
        """Begin to use credits: a dispatcher runs. Names no dispatch as a forked twin would."""
        self._prefix = os.urandom(8).hex()

    def litter(self, kind: Kind[Any], chosen: Options) -> Litter:
        """Return what makes rows of one kind with the same options."""
        if chosen is not DEFAULTS:
            return Litter(self, kind, chosen)
        found = self._plain.get(kind.name)
        if found is None or found.kind is not kind:
            found = self._plain[kind.name] = Litter(self, kind, chosen)
        return found

    def mark(self, state: str, given: tuple[bool, ...], due: str) -> str:
        """Return the marks of a row of this shape."""
        shape = (state, given, due)
        found = self._marks.get(shape)
        if found is None:
            found = self._marks[shape] = self._dialect.sql(statements.row(state, given, due))
        return found

    def dispatch_id(self) -> str:
        """Return a fresh name of a dispatch."""
        with self._lock:
            self._counter += 1
            return f"{self._prefix}{self._counter:016x}"

    def due(self, chosen: Options) -> tuple[bool, str, list[Any]]:
        """Tell whether a task is due, by which token its row says when, and that token's values."""
        due_at, delay = chosen.due_at, chosen.delay_seconds
        if due_at is None:
            return (False, "now_plus", [delay, delay]) if delay else (True, "now", [])
        if due_at.tzinfo is not None:
            due_at = due_at.astimezone(dt.UTC).replace(tzinfo=None)
        when = self._dialect.from_time(due_at)
        return due_at <= utc_now(), "now_or_later", [when, when]

    @property
    def lease_seconds(self) -> float:
        """Return for how long this process may push what it has named."""
        return self._settings.dispatch_lease_seconds


class Litter:
    """Rows of one kind with the same options. Thread-safe."""

    def __init__(self, births: Births, kind: Kind[Any], chosen: Options) -> None:
        self.kind = kind
        self.queue_name = queue_key(kind.queue, chosen.region)
        self._births = births
        self._tenant_id = chosen.tenant_id
        self._head = [kind.queue, chosen.region, kind.name, chosen.tenant_id, chosen.priority]
        keys = (chosen.dedupe_key, chosen.idempotency_key, chosen.parent_id)
        self._keys = [key for key in keys if key is not None]
        self._keys.append(chosen.max_attempts or kind.retry.max_attempts)
        trace = chosen.trace
        self._trace = [] if trace is None else [trace]
        self._given = (*(key is not None for key in keys), trace is not None)
        self._is_due, self._due, self._when = births.due(chosen)

    def row(self, body: str, *, may_dispatch: bool) -> Born:
        """Return the row of one payload; one that may go to Redis takes a credit if it can."""
        births, dispatch_id = self._births, None
        if may_dispatch and self._is_due and births.credits.take(self.queue_name, self._tenant_id):
            state, dispatch_id = State.DISPATCHING.value, births.dispatch_id()
        else:
            state = State.PENDING.value if self._is_due else State.SCHEDULED.value
        values = [*self._head, body, *self._keys]
        if dispatch_id is None:
            values += self._trace
            values += self._when
        else:
            values.append(dispatch_id)
            values += self._trace
            values += self._when
            values.append(births.lease_seconds)
        given = self._given
        mark = births.mark(state, (*given[:3], dispatch_id is not None, given[3]), self._due)
        return Born(mark, values, state, dispatch_id)
