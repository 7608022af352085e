"""An outbox's parts without broker, scans or threads: rows put where a test wants them.

`Bench` makes the context, the enqueuer and what writes answers; `run` puts a row into `running` as
a claim would and gives the execution. `Things` are domain rows with hooks, as a stranger has them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import pydantic
import redis
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.core.clock import monotonic
from shared.core.ids import new_id
from shared.outbox import rows
from shared.outbox.answers import Answers
from shared.outbox.completion import Completion, Completions
from shared.outbox.context import OutboxContext
from shared.outbox.db import Database
from shared.outbox.ends import Ends
from shared.outbox.enqueue import Enqueuer
from shared.outbox.execution import RUNNING, Execution, ExecutionPorts, Executions, Lock, TaskView
from shared.outbox.heartbeat import Heartbeat
from shared.outbox.kinds import EndedTask, Kind, Kinds
from shared.outbox.ports import Limits, Places
from shared.outbox.resources import Resources
from shared.outbox.rows import TaskRow
from shared.outbox.schema import task_attempts, task_audit, task_events, tasks
from shared.outbox.scripts import Scripts
from shared.outbox.settings import OutboxSettings
from shared.outbox.signals import Signal, Signals
from tests.support.eventually import eventually

S = TypeVar("S")

domain = sa.MetaData()
things = sa.Table(
    "things",
    domain,
    sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("state", sa.String(32), nullable=False),
    sa.Column("ends", sa.Integer, nullable=False, server_default="0"),
    mysql_engine="InnoDB",
)


class Touch(pydantic.BaseModel):
    """The payload of tests: which thing a task is about (0: none)."""

    thing_id: int = 0


class NoCredits:
    """Rows are born pending."""

    def take(self, queue_name: str, tenant_id: str) -> bool:
        """Give nothing."""
        return False

    def mark_backlog(self, queue_name: str, tenant_id: str) -> None:
        """Forget it."""


class NoDispatcher:
    """Takes what a commit left to do, and keeps it to be looked at."""

    def __init__(self) -> None:
        self.lanes: list[Any] = []

    def submit(
        self, dispatches: Sequence[Any], lanes: Sequence[Any], late_seconds: float = 0.0
    ) -> None:
        """Keep it."""
        self.lanes.extend(lanes)


class Bench(ExecutionPorts):
    """One process's view of an outbox; make two for two processes on one database."""

    def __init__(
        self,
        url: str,
        redis_url: str,
        *,
        namespace: str = "bench",
        node: str = "node-1",
        kinds: Sequence[Kind[Any]] = (),
        places: Places | None = None,
        limits: Limits | None = None,
        **settings: Any,
    ) -> None:
        self.engine = sa.create_engine(url, pool_size=20)
        client = redis.Redis.from_url(redis_url, socket_timeout=2, retry=None)
        self.signals: list[Signal] = []
        self.context = OutboxContext(
            db=Database(self.engine),
            redis=client,
            scripts=Scripts(client, namespace),
            namespace=namespace,
            node=node,
            kinds=Kinds(),
            signals=Signals(),
            # A machine that is short of time slows what is inside of `complete()`, too.
            settings=OutboxSettings(**{"complete_seconds": 60.0, **settings}),
            executions=Executions(),
            places=places,
            limits=limits,
        )
        self.namespace = namespace
        self.context.signals.subscribe(self.signals.append)
        for kind in kinds:
            self.context.kinds.register(kind)
        self.dispatcher = NoDispatcher()
        self.enqueuer = Enqueuer(
            db=self.context.db,
            kinds=self.context.kinds,
            settings=self.context.settings,
            credits=NoCredits(),
            after_commit=self.dispatcher,
        )
        self.ends = Ends(self.context, self.enqueuer)
        self.answers = Answers(self.context, self.enqueuer)
        self.completions = Completions(self.context, self.enqueuer)
        self.heartbeat = Heartbeat(self.context)
        self.resources = Resources(self.context, self.heartbeat)

    def close(self) -> None:
        """Let go of every connection."""
        self.context.redis.close()
        self.engine.dispose()

    # -- what executions need --------------------------------------------------------------

    def save_checkpoint(self, execution: Execution, data: str, progress: int) -> None:
        """Keep a checkpoint."""
        self.heartbeat.save_checkpoint(execution, data, progress)

    def emit(self, execution: Execution, type: str, data: dict[str, Any]) -> None:  # noqa: A002
        """Record an event."""
        self.heartbeat.emit(execution, type, data)

    def complete(
        self, execution: Execution, lock: Sequence[Lock]
    ) -> AbstractContextManager[Completion]:
        """Open the completing transaction."""
        return self.completions.open(execution, lock)

    def fenced(self, execution: Execution, lock: Sequence[Lock]) -> AbstractContextManager[Session]:
        """Open a fenced transaction."""
        return self.completions.fenced(execution, lock)

    # -- rows ------------------------------------------------------------------------------

    def put(self, kind: Kind[Any] | str, payload: Any = None, **options: Any) -> int:
        """Enqueue one task and commit; returns its id."""
        with Session(self.engine) as session, session.begin():
            enqueued = self.enqueuer.enqueue(session, kind, payload or {}, **options)
        return int(enqueued.id)

    def set(self, task_id: int, **values: Any) -> None:
        """Overwrite columns of a row."""
        with self.engine.begin() as connection:
            connection.execute(sa.update(tasks).where(tasks.c.id == task_id).values(**values))

    def expire(self, task_id: int) -> None:
        """Let the lease of a row have run out on the database's clock."""
        past = self.read(task_id).now.replace(year=2001)
        self.set(task_id, lease_until=past)

    def run(
        self, task_id: int, *, lease_seconds: float | None = None, phase: str = RUNNING
    ) -> Execution:
        """Claim a row that waits, and return its execution, held by this process."""
        lease = self.context.settings.lease_seconds if lease_seconds is None else lease_seconds
        owner = f"{self.context.node}:{new_id()[:16]}"
        dialect = self.context.db.dialect
        text = dialect.sql(
            "UPDATE tasks SET state = 'running', owner = {p}, fence = fence + 1, "
            "lease_until = {clock_plus}, started_at = {clock}, dispatch_id = {p}, "
            "resource_key = NULL "
            "WHERE id = {p} AND state NOT IN ('running', 'completed', 'failed', 'cancelled')"
        )
        sent_at = monotonic()

        def claim(cursor: Any) -> None:
            cursor.execute(text, (owner, lease, new_id(), task_id))
            assert cursor.rowcount == 1, f"task {task_id} does not wait"

        self.context.db.run(claim)
        row = self.read(task_id)
        values = self.columns(task_id)
        execution = Execution(
            self,
            task=TaskView(
                id=row.id,
                queue=row.queue,
                region=row.region,
                kind=row.kind,
                tenant_id=row.tenant_id,
                payload=row.payload,
                checkpoint=values["checkpoint"],
                progress=values["progress"],
                attempt=row.attempt,
                max_attempts=row.max_attempts,
                recoveries=row.recoveries,
                crashes=row.crashes,
                parent_id=values["parent_id"],
                trace_parent=values["trace_parent"],
                created_at=row.created_at,
            ),
            kind=self.context.kinds.find(row.kind),
            owner=owner,
            fence=row.fence,
            dispatch_id=row.dispatch_id or "",
            lease_ends=sent_at + lease,
            slots=row.slots,
        )
        execution.phase = phase
        execution.started_at = monotonic()
        execution.thread_id = threading.get_ident()
        self.context.executions.add([execution])
        return execution

    def read(self, task_id: int) -> TaskRow:
        """Return a row as it is now."""
        dialect = self.context.db.dialect
        return self.context.db.run(
            lambda cursor: rows.read(cursor, dialect, [task_id]), read_only=True
        )[task_id]

    def columns(self, task_id: int) -> Any:
        """Return all columns of a row."""
        found = self._all(tasks, tasks.c.id == task_id, tasks.c.id)
        return found[0]

    def attempts(self, task_id: int) -> list[Any]:
        """Return the ended attempts that are kept, oldest first."""
        return self._all(task_attempts, task_attempts.c.task_id == task_id, task_attempts.c.id)

    def events(self, task_id: int) -> list[Any]:
        """Return the events, oldest first."""
        return self._all(task_events, task_events.c.task_id == task_id, task_events.c.id)

    def event_types(self, task_id: int) -> list[str]:
        """Return the types of the events, oldest first."""
        return [event["type"] for event in self.events(task_id)]

    def audit(self, task_id: int) -> list[Any]:
        """Return the manual actions, oldest first."""
        return self._all(task_audit, task_audit.c.task_id == task_id, task_audit.c.id)

    def seen(self, type_: type[S]) -> list[S]:
        """Return the signals of a type, oldest first."""
        return [signal for signal in self.signals if isinstance(signal, type_)]

    @contextlib.contextmanager
    def locked(self, *task_ids: int) -> Iterator[None]:
        """Hold the locks of rows on another connection (MariaDB only)."""
        with self.engine.connect() as connection, connection.begin():
            connection.execute(
                sa.select(tasks.c.id)
                .with_hint(tasks, "FORCE INDEX (PRIMARY)")
                .where(tasks.c.id.in_(task_ids))
                .with_for_update()
            )
            yield

    def await_lock_wait(self) -> int:
        """Wait until a transaction waits for a row lock; returns its connection (MariaDB only)."""

        def waiting() -> int | None:
            with self.engine.connect() as connection:
                return connection.exec_driver_sql(
                    "SELECT trx_mysql_thread_id FROM information_schema.innodb_trx "
                    "WHERE trx_state = 'LOCK WAIT'"
                ).scalar()

        # The server refreshes this table only when nobody has read it for 0.1 s.
        return eventually(waiting, interval_seconds=0.15) or 0

    def kill_connection(self, connection_id: int) -> None:
        """Cut a connection from the server's side (MariaDB only)."""
        with self.engine.connect() as connection:
            connection.exec_driver_sql(f"KILL CONNECTION {int(connection_id)}")

    def _all(self, table: sa.Table, where: Any, order: Any) -> list[Any]:
        with self.engine.connect().execution_options(read_only=True) as connection:
            found = connection.execute(sa.select(table).where(where).order_by(order))
            return list(found.mappings())


class Things:
    """Domain rows in step with tasks: `ended` on every end, `ready` again on a retry."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self.ended: list[tuple[EndedTask, str]] = []
        self.retried: list[EndedTask] = []
        #: Raised by the next call of a hook, then forgotten.
        self.fail_on_end: Exception | None = None
        self.fail_on_retry: Exception | None = None
        domain.create_all(engine)

    def kind(self, name: str = "mail.send", **options: Any) -> Kind[Touch]:
        """Return a kind with all hooks."""
        return Kind(
            name=name,
            payload=Touch,
            locks=self.lock,
            on_end=self.on_end,
            on_retry=self.on_retry,
            **options,
        )

    def add(self, thing_id: int, state: str = "ready") -> int:
        """Insert a thing."""
        with self._engine.begin() as connection:
            connection.execute(sa.insert(things).values(id=thing_id, state=state, ends=0))
        return thing_id

    def state(self, thing_id: int) -> str:
        """Return the state of a thing."""
        with self._engine.connect().execution_options(read_only=True) as connection:
            found = connection.scalar(sa.select(things.c.state).where(things.c.id == thing_id))
        return str(found)

    def lock(self, session: Session, payload: Touch) -> None:
        """Take the thing's row."""
        session.execute(
            sa.select(things.c.id).where(things.c.id == payload.thing_id).with_for_update()
        )

    def on_end(self, session: Session, task: EndedTask, outcome: str) -> None:
        """Write the end into the thing."""
        self._write(session, task, f"task {outcome}")
        error, self.fail_on_end = self.fail_on_end, None
        if error is not None:
            raise error
        self.ended.append((task, outcome))

    def on_retry(self, session: Session, task: EndedTask) -> None:
        """Make the thing ready again, or refuse."""
        if self.fail_on_retry is not None:
            raise self.fail_on_retry
        self._write(session, task, "ready")
        self.retried.append(task)

    @staticmethod
    def _write(session: Session, task: EndedTask, state: str) -> None:
        assert isinstance(task.payload, Touch)
        session.execute(
            sa.update(things)
            .where(things.c.id == task.payload.thing_id)
            .values(state=state, ends=things.c.ends + 1)
        )


class Thread(threading.Thread):
    """A thread that brings its answer, or its exception, back to `join_answer`."""

    def __init__(self, act: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._act = act
        self._answer: Any = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Run the function."""
        try:
            self._answer = self._act()
        except BaseException as error:  # brought to the test
            self._error = error

    def join_answer(self, timeout: float = 30.0) -> Any:
        """Wait for the end; raise what the function raised."""
        self.join(timeout)
        assert not self.is_alive(), f"not done within {timeout} s"
        if self._error is not None:
            raise self._error
        return self._answer
