"""Few contents, few keys, many actors, no grace: puts, deletes, uploads, sweeps, lost leases.

Other systems lost data here: a reference taken within the second of a collection.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from shared.core.clock import Deadline
from shared.core.errors import BloxError
from shared.outbox.schema import tasks
from tests.integration.handlers.sweeping import sweeper
from tests.integration.handlers.test_crashes import check_all
from tests.support.eventually import eventually
from tests.support.handlers import PART_BYTES, Stand
from tests.support.outbox import Thread

CONTENTS = [b"one", b"two", b"x" * (PART_BYTES * 2 + 5)]
KEYS = ["a"]
OPERATIONS = 80
WORKERS = 3


@pytest.fixture
def crowd(blox_url: str, tmp_path: Path, stand: Stand) -> Iterator[list[Stand]]:
    """Workers of their own processes' kind, one stand each."""
    made = [Stand(blox_url, tmp_path, node=f"worker-{n}") for n in range(WORKERS)]
    yield made
    for one in made:
        one.close()


class Client:
    """One caller with keys of its own, so that it knows what a GET must show."""

    def __init__(self, stand: Stand, bucket: int, name: str) -> None:
        self.last: dict[str, bytes | None] = {}
        self._stand = stand
        self._bucket = bucket
        self._name = name
        self._random = random.Random(name)

    def run(self) -> None:
        """Put and delete."""
        for _ in range(OPERATIONS):
            key = f"{self._name}-{self._random.choice(KEYS)}"
            self._read(key)
            if self._random.random() < 0.3:
                self._stand.remove(self._bucket, key)
                self.last[key] = None
            else:
                content = self._random.choice(CONTENTS)
                put = self._stand.put(self._bucket, key, content)
                self.last[key] = content
                if self._random.random() < 0.7:
                    # Most are stored before the next write, so that contents come and go.
                    self._wait_until_stored(put.version_id)
                if self._random.random() < 0.3:
                    # And a deletion that should not be has the time to happen.
                    eventually(lambda: not self._stand.waiting("delete"), 30)

    def _read(self, key: str) -> None:
        """Look at what a GET finds now; nobody else writes this key."""
        content = self.last.get(key)
        if content is None:
            return
        served = self._stand.object(self._bucket, key).served_version_id
        assert served is not None
        if self._stand.version(served).state == "stored":
            assert self._stand.stored_bytes(served) == content

    def _wait_until_stored(self, version_id: int) -> None:
        eventually(lambda: self._stand.version(version_id).state == "stored", 30)


def work(stand: Stand, done: threading.Event, rest: Callable[[], bool]) -> None:
    """Take waiting tasks, whoever else does, until nothing is left."""
    dice = random.Random(stand.bench.context.node)
    while not (done.is_set() and rest()):
        waiting = stand.waiting("upload") + stand.waiting("delete")
        if not waiting:
            done.wait(0.01)
            continue
        try:
            execution = stand.claim(dice.choice(waiting))
        except AssertionError:
            continue  # Another was faster, or it was superseded.
        if dice.random() < 0.1:
            # The lease is lost while it works: another may take the task at once.
            lose_lease(stand, execution.task.id)
        try:
            stand.run(execution)
        except BloxError:
            continue


def lose_lease(stand: Stand, task_id: int) -> None:
    with stand.db.engine.begin() as connection:
        connection.execute(
            sa.update(tasks)
            .where(tasks.c.id == task_id, tasks.c.state == "running")
            .values(state="pending", owner=None, lease_until=None)
        )


def test_no_content_is_lost_and_nothing_is_left(stand: Stand, crowd: list[Stand]) -> None:
    bucket = stand.bucket()
    clients = [Client(stand, bucket, name) for name in ("ann", "bob")]
    done, stop = threading.Event(), threading.Event()

    def rest() -> bool:
        return not (stand.waiting("upload") or stand.waiting("delete"))

    def sweep() -> None:
        # Staging keeps its age: a file that was just written is not named yet.
        sweeps = sweeper(stand, staging_age_seconds=3600.0)
        while not stop.is_set():
            assert sweeps.run_once(deadline=Deadline(30), check=lambda: None).errors == {}
            stop.wait(0.1)

    callers = [Thread(client.run) for client in clients]
    workers = [Thread(lambda one=one: work(one, done, rest)) for one in crowd]  # type: ignore[misc]
    sweeping = Thread(sweep)
    for caller in callers:
        caller.join_answer(100)
    done.set()
    for worker in workers:
        worker.join_answer(100)
    stop.set()
    sweeping.join_answer(30)

    check_all(stand)
    for client in clients:
        for key, content in client.last.items():
            current = stand.object(bucket, key).current_version_id
            if content is None:
                assert current is None
            else:
                assert current is not None
                assert stand.stored_bytes(current) == content
