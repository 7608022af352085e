"""A random schedule of deaths, freezes and losses around the outbox, and a user who works on.

The schedule comes from a seed alone. What the user was told is remembered for each task, and the
end is held to it.
"""

from __future__ import annotations

import contextlib
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import redis
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.core.errors import ConflictError, UnavailableError
from shared.outbox.outbox import Outbox
from shared.outbox.schema import tasks
from tests.servers.mariadb import MariaDB
from tests.servers.redis import RedisServer
from tests.support.effects import DEADLY, EFFECT, PLAIN, EffectWorker, Work, build

LEASE_SECONDS = 2.0
#: Worker processes; the first ones also scan and fill.
WORKERS, COMPENSATING = 3, 2
THREADS = 4
#: Tasks that the user leaves open at a time.
MAX_OPEN = 300
_TENANTS = ("", "acme", "globex")


@dataclass(slots=True)
class Promise:
    """In which states a task may end by what its user was told, and whether it has an effect."""

    states: set[str]
    has_effect: bool = True


@dataclass(slots=True)
class Ledger:
    """What the user was told. `unknown` are payload marks of commits that were not confirmed."""

    promises: dict[int, Promise] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    rolled_back: int = 0
    told: Counter[str] = field(default_factory=Counter)


class User:
    """Enqueues, cancels and retries, one thing after the other, as long as it is let."""

    def __init__(self, outbox: Outbox, dice: random.Random, *, deadly: int) -> None:
        self._outbox = outbox
        self._dice = dice
        self._deadly = deadly
        self.ledger = Ledger()

    def run(self, stop: threading.Event) -> None:
        """Work until `stop` is set."""
        acts: list[tuple[Callable[[], None], int]] = [
            (self._one, 10),
            (self._many, 2),
            (self._roll_back, 1),
            (self._cancel, 3),
            (self._retry, 2),
        ]
        chosen, weights = zip(*acts, strict=True)
        look_at = 0.0
        while not stop.wait(self._dice.uniform(0.0, 0.06)):
            if time.monotonic() >= look_at:
                # More than the workers can do between their deaths would only take time at the end.
                while self._count_open() > MAX_OPEN and not stop.wait(0.2):
                    pass
                look_at = time.monotonic() + 1.0
            self._dice.choices(chosen, weights)[0]()

    def _count_open(self) -> int:
        try:
            return sum(open_tasks(self._outbox).values())
        except self._outbox.context.db.errors:
            return 0

    def _work(self) -> Work:
        # Who never asks goes on after a freeze as if nothing had been: only the fence stops it.
        return Work(
            seconds=self._dice.choice((0.0, 0.0, 0.05, 0.3, 0.8, 1.5)),
            heedless=self._dice.random() < 0.5,
        )

    def _one(self) -> None:
        kind = self._dice.choice((EFFECT, EFFECT, PLAIN))
        promise = Promise({"completed"}, has_effect=kind is EFFECT)
        if self._deadly and self._dice.random() < 0.02:
            self._deadly -= 1
            self.ledger.told["deadly"] += 1
            kind, promise = DEADLY, Promise({"failed"}, has_effect=False)
        work = self._work().model_copy(update={"deadly": kind is DEADLY})
        options: dict[str, Any] = {
            "tenant_id": self._dice.choice(_TENANTS),
            "priority": self._dice.randrange(4),
            "delay_seconds": self._dice.choice((0.0, 0.0, 0.0, 0.4)),
        }
        self._accept(
            lambda session: [self._outbox.enqueue(session, kind, work, **options).id], promise
        )

    def _many(self) -> None:
        count, kind = self._dice.randrange(2, 25), self._dice.choice((EFFECT, PLAIN))
        promise = Promise({"completed"}, has_effect=kind is EFFECT)

        def write(session: Session) -> list[int]:
            answers = self._outbox.enqueue_many(session, kind, [Work()] * count)
            return [answer.id for answer in answers]

        self._accept(write, promise)

    def _accept(self, write: Callable[[Session], list[int]], promise: Promise) -> None:
        try:
            with Session(self._outbox.engine) as session:
                ids = write(session)
                mark = f"{min(ids)}-{max(ids)}"
                try:
                    session.commit()
                except self._outbox.context.db.errors:
                    self.ledger.unknown.append(mark)
                    self.ledger.told["commit unknown"] += 1
                    return
        except self._outbox.context.db.errors:
            self.ledger.told["refused"] += 1
            return
        for task_id in ids:
            self.ledger.promises[task_id] = Promise(set(promise.states), promise.has_effect)
        self.ledger.told["accepted"] += len(ids)

    def _roll_back(self) -> None:
        with contextlib.suppress(*self._outbox.context.db.errors):
            with Session(self._outbox.engine) as session:
                self._outbox.enqueue(session, EFFECT, self._work())
                session.rollback()
            self.ledger.rolled_back += 1

    def _pick(self) -> tuple[int, Promise] | None:
        recent = list(self.ledger.promises.items())[-60:]
        recent = [item for item in recent if item[1].states != {"failed"}]
        return self._dice.choice(recent) if recent else None

    def _cancel(self) -> None:
        if (picked := self._pick()) is None:
            return
        task_id, promise = picked
        try:
            answer = self._outbox.cancel(task_id, by="chaos")
        except UnavailableError:
            promise.states.add("cancelled")
            self.ledger.told["cancel unknown"] += 1
            return
        self.ledger.told[f"cancel: {answer.state}"] += 1
        if answer.state in ("cancelled", "cancelling"):
            promise.states = {"cancelled"}

    def _retry(self) -> None:
        cancelled = [
            (task_id, promise)
            for task_id, promise in self.ledger.promises.items()
            if promise.states == {"cancelled"}
        ]
        if not cancelled:
            return
        task_id, promise = self._dice.choice(cancelled)
        try:
            self._outbox.retry(task_id, by="chaos")
        except ConflictError:
            # It runs still.
            return
        except UnavailableError:
            promise.states.add("completed")
            self.ledger.told["retry unknown"] += 1
            return
        promise.states = {"completed"}
        self.ledger.told["retried"] += 1


class Weather:
    """Kills, freezes and forgets, by the dice, until its time is over; then everything is well."""

    def __init__(
        self,
        url: str,
        redis_server: RedisServer,
        namespace: str,
        dice: random.Random,
        mariadb: MariaDB | None,
    ) -> None:
        self._args = (url, redis_server.url, namespace)
        self._database = sa.make_url(url).database
        self._redis = redis_server
        self._namespace = namespace
        self._dice = dice
        self._mariadb = mariadb
        self.workers: list[EffectWorker] = []
        self.log: list[str] = []
        self._began = time.monotonic()
        self._dump: dict[bytes, bytes] = {}
        #: Frozen workers, and when they go on.
        self._frozen: list[tuple[EffectWorker, float]] = []

    def start(self) -> None:
        """Start the worker processes."""
        self.workers = [self._worker(number) for number in range(WORKERS)]

    def rage(self, seconds: float) -> None:
        """Do one thing after the other for so long."""
        acts: list[tuple[Callable[[], None], int]] = [
            (self._kill_one, 4),
            (self._kill_all, 1),
            (self._freeze, 6),
            (self._flush, 2),
            (self._restart_redis, 2),
            (self._remember_redis, 3),
            (self._restore_redis, 2),
            (self._delete_lists, 1),
        ]
        if self._mariadb is not None:
            acts.append((self._cut_connections, 4))
        chosen, weights = zip(*acts, strict=True)
        end = time.monotonic() + seconds
        pause = threading.Event()
        while time.monotonic() < end:
            pause.wait(self._dice.uniform(0.2, 1.5))
            self._dice.choices(chosen, weights)[0]()
            self._thaw(time.monotonic())
            self.replace_dead()
        self._thaw(math.inf)
        self.replace_dead()

    def replace_dead(self) -> None:
        """Start another worker for each that has ended."""
        for number, worker in enumerate(self.workers):
            code = worker.process.poll()
            if code is not None:
                self._note(f"worker {number} had ended with {code}, another is started")
                self.workers[number] = self._worker(number)

    def stop(self) -> list[int]:
        """End every worker in the ordered way; returns their exit codes."""
        return [worker.stop() for worker in self.workers]

    def clear(self) -> None:
        """End whatever runs still."""
        for worker in self.workers:
            worker.__exit__()

    # -- what happens ----------------------------------------------------------------------

    def _note(self, text: str) -> None:
        self.log.append(f"{time.monotonic() - self._began:5.1f} {text}")

    def _worker(self, number: int) -> EffectWorker:
        return EffectWorker(
            *self._args,
            lease_seconds=LEASE_SECONDS,
            threads=THREADS,
            compensate=number < COMPENSATING,
        )

    def _kill_one(self) -> None:
        number = self._dice.randrange(WORKERS)
        self._note(f"kill worker {number}")
        self.workers[number].kill()

    def _kill_all(self) -> None:
        self._note("kill all workers")
        for worker in self.workers:
            worker.kill()

    def _freeze(self) -> None:
        number = self._dice.randrange(WORKERS)
        seconds = LEASE_SECONDS + self._dice.uniform(0.3, 1.5)
        self._note(f"freeze worker {number} for {seconds:.1f} s")
        self.workers[number].pause()
        self._frozen.append((self.workers[number], time.monotonic() + seconds))

    def _thaw(self, now: float) -> None:
        for worker, _ in [item for item in self._frozen if item[1] <= now]:
            worker.resume()
        self._frozen = [item for item in self._frozen if item[1] > now]

    def _flush(self) -> None:
        self._note("flush Redis")
        self._redis.flush()

    def _restart_redis(self) -> None:
        seconds = self._dice.uniform(0.0, 2.0)
        self._note(f"Redis is away for {seconds:.1f} s, and comes back empty")
        self._redis.kill()
        threading.Event().wait(seconds)
        self._redis.start()

    def _remember_redis(self) -> None:
        with self._raw() as client:
            keys = client.keys(f"{self._namespace}:*")
            found = {key: client.dump(key) for key in keys}
        self._dump = {key: value for key, value in found.items() if value is not None}
        self._note(f"remember {len(self._dump)} keys of Redis")

    def _restore_redis(self) -> None:
        self._note(f"set Redis back to {len(self._dump)} keys")
        with self._raw() as client:
            client.flushall()
            for key, value in self._dump.items():
                client.restore(key, 0, value, replace=True)

    def _delete_lists(self) -> None:
        self._note("delete the queue's list")
        with self._raw() as client:
            client.delete(f"{self._namespace}:{EFFECT.queue}")

    def _cut_connections(self) -> None:
        assert self._mariadb is not None
        rows = self._mariadb.execute(
            "SELECT id FROM information_schema.processlist WHERE db = %s", self._database
        )
        some = self._dice.sample(rows, min(len(rows), self._dice.randrange(1, 6)))
        self._note(f"cut {len(some)} of {len(rows)} connections")
        for row in some:
            with contextlib.suppress(Exception):  # it may have ended by itself
                self._mariadb.execute(f"KILL CONNECTION {int(str(row[0]))}")

    @contextlib.contextmanager
    def _raw(self) -> Iterator[Any]:
        client = redis.Redis.from_url(self._redis.url, socket_timeout=2.0)
        try:
            yield client
        finally:
            client.close()


def producer(url: str, redis_url: str, namespace: str) -> Outbox:
    """Return the user's outbox: real credits, no scans of its own."""
    return build(url, redis_url, namespace, lease_seconds=LEASE_SECONDS)


def open_tasks(outbox: Outbox) -> dict[str, int]:
    """Return how many tasks have not ended, by state."""
    with Session(outbox.engine.execution_options(read_only=True)) as session:
        query = sa.select(tasks.c.state, sa.func.count()).group_by(tasks.c.state)
        found = {str(row[0]): int(row[1]) for row in session.execute(query)}
    return {
        state: count
        for state, count in found.items()
        if state not in ("completed", "failed", "cancelled")
    }
