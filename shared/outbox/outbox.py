"""The outbox as its users see it: enqueue, run, cancel, retry."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import dramatiq
import pydantic
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.core.clock import Deadline
from shared.core.errors import ConflictError, UnavailableError
from shared.core.ids import node_name
from shared.outbox.answers import Answers
from shared.outbox.broker import OutboxBroker
from shared.outbox.cancel import CancelAnswer, cancel, supersede
from shared.outbox.client import make_client
from shared.outbox.completion import Completions
from shared.outbox.context import OutboxContext
from shared.outbox.credits import Wallet
from shared.outbox.db import Database
from shared.outbox.dispatcher import Dispatch, Dispatcher, LaneNote
from shared.outbox.enqueue import Enqueued, Enqueuer
from shared.outbox.execution import Executions
from shared.outbox.health import OutboxHealth
from shared.outbox.heartbeat import Heartbeat
from shared.outbox.housekeeping import drop_ended
from shared.outbox.kinds import Handler, Kind, Kinds
from shared.outbox.lanes import Lanes
from shared.outbox.manual import dispatch_now, retry, wake, wake_all
from shared.outbox.messages import queue_key
from shared.outbox.nodes import NodeWriter
from shared.outbox.ports import Limits, Places
from shared.outbox.pulse import Pulse
from shared.outbox.resources import Resources
from shared.outbox.run import run_until_signal
from shared.outbox.schema import metadata
from shared.outbox.scripts import Scripts
from shared.outbox.settings import OutboxSettings
from shared.outbox.settling import settle_kind
from shared.outbox.signals import Signals, Subscriber
from shared.outbox.wiring import Ports
from shared.outbox.worker import OutboxWorker

if TYPE_CHECKING:
    from shared.outbox.compensator import Compensator

H = TypeVar("H", bound=Handler)
#: Seconds that each part may still have when the time to close is over.
_LAST_SECONDS = 0.5
#: Characters of a node's name: an owner is that and 17 more.
_MAX_NODE = 63


class Outbox:
    """A transactional outbox on MySQL, MariaDB or SQLite, Redis as the bell, Dramatiq's threads.

    `engine` gets the settings that the protocols rely on (READ COMMITTED, UTC, bounded waits).
    `places` and `limits` bound how many executions use a resource; without them nothing is limited.
    Nothing runs before the first `enqueue` (which starts the dispatcher thread) or `start_worker`.
    """

    def __init__(
        self,
        engine: sa.Engine,
        redis_url: str,
        *,
        namespace: str = "blox",
        settings: OutboxSettings | None = None,
        node: str | None = None,
        version: str = "",
        places: Places | None = None,
        limits: Limits | None = None,
        inline: bool = False,
    ) -> None:
        if node is not None and not (node.isascii() and 0 < len(node) <= _MAX_NODE):
            raise ValueError(f"node must be ASCII of 1 to {_MAX_NODE} characters: {node!r}")
        self.settings = settings or OutboxSettings()
        self._redis_url = redis_url
        self._version = version
        client = make_client(redis_url, self.settings.redis_timeout_seconds)
        self.context = OutboxContext(
            db=Database(engine),
            redis=client,
            scripts=Scripts(client, namespace),
            namespace=namespace,
            node=node or node_name(),
            kinds=Kinds(),
            signals=Signals(),
            settings=self.settings,
            executions=Executions(),
            places=places,
            limits=limits,
        )
        self._lanes = Lanes(self.context)
        self._wallet = Wallet(self.context)
        self._dispatcher = Dispatcher(self.context, self._lanes.ensure)
        self._enqueuer = Enqueuer(
            db=self.context.db,
            kinds=self.context.kinds,
            settings=self.settings,
            credits=self._wallet,
            after_commit=_Nowhere() if inline else self._dispatcher,
        )
        self.answers = Answers(self.context, self._enqueuer)
        self.heartbeat = Heartbeat(self.context)
        self.resources = Resources(self.context, self.heartbeat)
        completions = Completions(self.context, self._enqueuer)
        self.broker = OutboxBroker(self.context, Ports(namespace, self.heartbeat, completions))
        self._worker: OutboxWorker | None = None
        self._consumed: tuple[str, ...] = ()
        self._nodes: NodeWriter | None = None
        self._pulse: Pulse | None = None
        self._start_lock = threading.Lock()
        # Inline, nothing is started and Redis is never asked: see `shared.outbox.testing`.
        self._is_inline = inline
        self._producing_pid = os.getpid() if inline else 0
        self._made_in_pid = os.getpid()

    # -- kinds -----------------------------------------------------------------------------

    def register(self, *kinds: Kind[Any]) -> None:
        """Make kinds known, so that this process can enqueue and end their tasks."""
        for kind in kinds:
            self.context.kinds.register(kind)

    def handler(self, kind: Kind[Any]) -> Callable[[H], H]:
        """Decorate the function that runs a kind in this process."""

        def attach(function: H) -> H:
            self.context.kinds.handle(kind, function)
            return function

        return attach

    def task(
        self, name: str, *, payload: type[pydantic.BaseModel], **options: Any
    ) -> Callable[[H], H]:
        """Declare a kind and decorate its handler in one; the options are those of `Kind`."""
        return self.handler(Kind(name=name, payload=payload, **options))

    def actor(self, queue: str) -> dramatiq.Actor[..., None]:
        """Return the Dramatiq actor that runs the tasks of one queue."""
        known: dramatiq.Actor[..., None] | None = self.broker.actors.get(queue)
        if known is not None:
            return known

        def run(task_id: int, dispatch_id: str) -> None:
            self.perform(queue, task_id, dispatch_id)

        run.__doc__ = f"Run one task of the queue {queue}."
        declare = dramatiq.actor(actor_name=queue, queue_name=queue, broker=self.broker)
        return declare(run)

    def perform(self, queue: str, task_id: int, dispatch_id: str) -> None:
        """Run one claimed task: the body of an actor."""
        if self._worker is None:
            raise RuntimeError("no worker was started")
        self._worker.performer.perform(queue, task_id, dispatch_id)

    # -- producing -------------------------------------------------------------------------

    def enqueue(
        self,
        session: Session,
        kind: Kind[Any] | str,
        payload: pydantic.BaseModel | Mapping[str, Any],
        **options: Any,
    ) -> Enqueued:
        """Write a task in the session's own transaction; it starts after the commit, never before.

        The keywords are those of `shared.outbox.options.Options`: tenant_id, region, priority (0
        first, to 3), delay_seconds or due_at, dedupe_key, idempotency_key, parent_id, trace_parent,
        max_attempts.
        """
        if self._producing_pid != os.getpid():
            self.start_producer()
        return self._enqueuer.enqueue(session, kind, payload, **options)

    def enqueue_many(
        self,
        session: Session,
        kind: Kind[Any] | str,
        payloads: Iterable[pydantic.BaseModel | Mapping[str, Any]],
        **options: Any,
    ) -> list[Enqueued]:
        """Write many tasks of one kind in few statements, in the session's own transaction."""
        if self._producing_pid != os.getpid():
            self.start_producer()
        return self._enqueuer.enqueue_many(session, kind, payloads, **options)

    def start_producer(self) -> None:
        """Start the dispatcher thread and the pulse; the first `enqueue` does it if nobody has."""
        with self._start_lock:
            if self._producing_pid == os.getpid():
                return
            if self._producing_pid:
                raise RuntimeError("this outbox was started before a fork; make one per process")
            self._producing_pid = os.getpid()
            if self._producing_pid != self._made_in_pid:
                # Made before a fork, started after it: no two processes may share a name.
                self.context.rename(node_name())
            self._dispatcher.start()
            self._nodes = NodeWriter(self.context, version=self._version)
            self._pulse = Pulse("outbox-pulse", at_end=self._nodes.remove)
            self._pulse.every(self.settings.credit_seconds / 2, self._wallet.refresh)
            self._pulse.every(self.settings.node_seconds, self._write_node)
            self._pulse.start()
            self._enqueuer.begin()
            atexit.register(self.close, 2.0)

    # -- consuming -------------------------------------------------------------------------

    def start_worker(
        self,
        queues: Sequence[str] | None = None,
        *,
        regions: Sequence[str] = ("",),
        threads: int = 8,
    ) -> None:
        """Begin to run tasks of these queues (default: of all kinds with a handler here)."""
        if self._worker is not None:
            raise ConflictError("the worker runs already")
        chosen = sorted(queues or self.context.kinds.queues())
        if not chosen:
            raise ValueError("no queue to consume: register a handler or name the queues")
        for queue in chosen:
            settle = settle_kind(queue, self.context)
            if self.context.kinds.find(settle.kind.name) is None:
                self.context.kinds.handle(settle.kind, settle.handler)
            self.actor(queue)
        self.start_producer()
        self._consumed = tuple(
            queue_key(queue, region) for queue in chosen for region in dict.fromkeys(regions)
        )
        self._worker = OutboxWorker(
            self.context,
            self.broker,
            answers=self.answers,
            heartbeat=self.heartbeat,
            redis_url=self._redis_url,
            threads=threads,
            make_client=make_client,
        )
        self._worker.start(self._consumed)
        # The windows of its queues open with this row. Without the database now, the pulse does it.
        with contextlib.suppress(UnavailableError):
            self._write_node()

    def run(
        self,
        queues: Sequence[str] | None = None,
        *,
        regions: Sequence[str] = ("",),
        threads: int = 8,
        compensate: bool = True,
        shutdown_seconds: float = 30.0,
    ) -> None:
        """Run worker and compensation in this process until SIGTERM or SIGINT; then stop in order.

        For programs of one process. `compensate` False leaves the scans to another process, of
        which there must be at least one. Call it in the main thread: it owns the signals.
        """
        run_until_signal(
            self,
            queues,
            regions=regions,
            threads=threads,
            compensate=compensate,
            shutdown_seconds=shutdown_seconds,
        )

    def stop_consuming(self) -> None:
        """Fetch nothing more; give back what no thread has started."""
        if self._worker is not None:
            self._worker.stop_consuming()

    def drain(self, seconds: float) -> bool:
        """Wait for running executions, then ask them to stop and give them back."""
        return self._worker is None or self._worker.drain(seconds)

    def close(self, seconds: float = 5.0) -> bool:
        """Stop every thread of this outbox; True when all ended in time. May be called twice.

        A database or a Redis that does not answer is not waited for any longer.

        In a process forked from the one that started it there is nothing to stop.
        """
        if self._producing_pid not in (0, os.getpid()):
            return True
        ok, end = True, Deadline(seconds)
        worker, self._worker = self._worker, None
        if worker is not None:
            ok = worker.close(seconds)
        self._enqueuer.is_producing = False
        if self._producing_pid == os.getpid() and not self._is_inline:
            atexit.unregister(self.close)
            ok = self._dispatcher.close(max(_LAST_SECONDS, end.remaining(seconds))) and ok
            pulse, self._pulse = self._pulse, None
            if pulse is not None:
                # The row in `nodes` goes with it.
                ok = pulse.close(max(_LAST_SECONDS, end.remaining(2.0))) and ok
        self.context.redis.close()
        if self.context.places is not None:
            self.context.places.close()
        return ok

    def compensator(self) -> Compensator:
        """Return the scans that bring back what fell between two steps; see `Compensator.run`."""
        # Most processes only produce or only consume: they need not load the scans.
        from shared.outbox.compensator import Compensator

        return Compensator(self.context, self._enqueuer)

    # -- acting on tasks -------------------------------------------------------------------

    def cancel(
        self, task_id: int, *, by: str, reason: str = "", tenant_id: str | None = None
    ) -> CancelAnswer:
        """Cancel a task, in a transaction of its own: at once when it waits, soon when it runs.

        The answer is the acknowledgement: from then on the task never commits as completed. Raises
        NotFoundError for an id that is not there, or not this tenant's.
        """
        return cancel(
            self.context, self._enqueuer, task_id, by=by, reason=reason, tenant_id=tenant_id
        )

    def retry(
        self,
        task_id: int,
        *,
        by: str,
        reason: str = "",
        force: bool = False,
        tenant_id: str | None = None,
    ) -> str:
        """Run a failed or cancelled task again (with `force` a completed one); returns its state.

        Raises ConflictError when its state, its dedupe key or its kind does not allow it.
        """
        state = retry(self.context, task_id, by=by, reason=reason, force=force, tenant_id=tenant_id)
        return str(state)

    def dispatch_now(
        self, task_id: int, *, by: str, reason: str = "", tenant_id: str | None = None
    ) -> str:
        """Make a scheduled task due at once; returns its state. Audited.

        Raises ConflictError when it is not scheduled, NotFoundError as `cancel` does.
        """
        state = dispatch_now(self.context, task_id, by=by, reason=reason, tenant_id=tenant_id)
        return str(state)

    def wake(self, session: Session, task_id: int) -> bool:
        """Make a task due whose snooze waits for the event that this transaction records.

        Call it after the event's row was locked and written. False when the task does not wait.
        """
        return wake(self.context, session, task_id)

    def wake_all(self, session: Session, task_ids: Sequence[int]) -> int:
        """Do as `wake` for many tasks at once; returns how many were waiting."""
        return wake_all(self.context, session, task_ids)

    def forget(self, session: Session, task_ids: Sequence[int]) -> int:
        """Drop those of these tasks that have ended, with the domain rows that the caller drops.

        For kinds whose failures nobody waits for any more then; `retain_failed_seconds` is for all.
        """
        return drop_ended(self.context, session, task_ids)

    def supersede(self, session: Session, task_ids: Sequence[int]) -> None:
        """End older work inside the caller's transaction, which holds the domain rows already."""
        supersede(self.context, self._enqueuer, session, task_ids)

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber` with every signal of this process; see `shared.outbox.signals`."""
        self.context.signals.subscribe(subscriber)

    def create_tables(self) -> None:
        """Make the outbox's tables where they are missing. Projects with migrations need it not."""
        metadata.create_all(self.context.db.engine)

    def health(self) -> OutboxHealth:
        """Say whether this process is live and ready. Looks at nothing but this process."""
        faults: list[str] = []
        missing: list[str] = []
        if self._producing_pid and not self._is_inline and not self._dispatcher.is_alive():
            faults.append("the dispatcher thread has died")
        if self._worker is not None:
            faults.extend(self._worker.faults())
            if self._worker.is_draining:
                missing.append("draining")
        return OutboxHealth(tuple(faults), tuple(missing))

    @property
    def engine(self) -> sa.Engine:
        """Return the engine whose database holds the tasks."""
        return self.context.db.engine

    @property
    def worker(self) -> OutboxWorker | None:
        """Return the consuming half, None in a process that only enqueues."""
        return self._worker

    def _write_node(self) -> None:
        worker = self._worker
        if self._nodes is None:
            return
        if worker is None:
            self._nodes.write(role="producer")
        else:
            self._nodes.write(
                role="worker",
                queues=() if worker.is_draining else self._consumed,
                threads=worker.threads,
                threads_busy=worker.busy,
                mean_seconds=worker.budget.means(),
            )


class _Nowhere:
    """Takes what follows a commit and does nothing with it: the rows wait to be run inline."""

    def submit(
        self,
        dispatches: Sequence[Dispatch],
        lanes: Sequence[LaneNote],
        late_seconds: float = 0.0,
    ) -> None:
        """Drop it."""
