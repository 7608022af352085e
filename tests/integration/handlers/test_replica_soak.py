"""Few contents that come and go, copies of them on other channels, rules that change, lost copies.

No grace, lost leases, sweeps all the time; in the end rows and channels agree.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shared.catalog.models import Location
from shared.core.clock import Deadline
from shared.core.errors import BloxError
from tests.integration.handlers import test_soak as soak
from tests.integration.handlers.sweeping import sweeper
from tests.integration.handlers.test_replica_crashes import check
from tests.integration.handlers.test_replica_job import turn
from tests.support.handlers import Stand
from tests.support.outbox import Thread
from tests.support.replicas import Copies

pytestmark = pytest.mark.databases("mariadb")

QUEUES = ("upload", "replica", "delete")
WORKERS = 3


@pytest.fixture
def crowd(blox_url: str, tmp_path: Path, stand: Stand) -> Iterator[list[Stand]]:
    made = [Stand(blox_url, tmp_path, node=f"worker-{n}") for n in range(WORKERS)]
    yield made
    for one in made:
        one.close()


def waiting(stand: Stand) -> list[int]:
    return [task for queue in QUEUES for task in stand.waiting(queue)]


def work(stand: Stand, done: threading.Event) -> None:
    """Take waiting tasks, whoever else does, until nothing is left."""
    dice = random.Random(stand.bench.context.node)
    while True:
        found = waiting(stand)
        if not found:
            if done.is_set():
                return
            done.wait(0.01)
            continue
        try:
            execution = stand.claim(dice.choice(found))
        except AssertionError:
            continue  # Another was faster, or it was superseded.
        if dice.random() < 0.1:
            soak.lose_lease(stand, execution.task.id)
        try:
            stand.run(execution)
        except BloxError:
            continue


def until(stop: threading.Event, act: Callable[[], object], seconds: float) -> Thread:
    """Do something again and again."""

    def run() -> None:
        while not stop.is_set():
            act()
            stop.wait(seconds)

    return Thread(run)


def lose_one(copies: Copies, dice: random.Random) -> None:
    """Remove the bytes of a copy on `b`, if the first copy is there."""
    stored = [one for one in copies.stand.locations() if one.state == "stored"]
    first = {one.blob_id for one in stored if one.channel == "a"}
    found: list[Location] = [one for one in stored if one.channel == "b" and one.blob_id in first]
    if found:
        lost = dice.choice(found)
        copies.stand.channels.faulty["b"].inner.delete(lost.key, deadline=Deadline(5))


@pytest.mark.parametrize("chaos", ["rules", "losses"])
def test_copies_agree_in_the_end(
    stand: Stand, crowd: list[Stand], monkeypatch: pytest.MonkeyPatch, chaos: str
) -> None:
    monkeypatch.setattr(soak, "OPERATIONS", 30)
    copies = Copies(stand)
    clients = [soak.Client(stand, copies.bucket, name) for name in ("ann", "bob")]
    done, stop = threading.Event(), threading.Event()
    sweeps = sweeper(stand, staging_age_seconds=3600.0)
    dice = random.Random(chaos)
    flips = iter(("c", "b") * 1000)

    def sweep() -> None:
        assert sweeps.run_once(deadline=Deadline(30), check=lambda: None).errors == {}

    def disturb() -> None:
        if chaos == "rules":
            copies.rules(next(flips))
        else:
            lose_one(copies, dice)

    callers = [Thread(client.run) for client in clients]
    workers = [Thread(lambda one=one: work(one, done)) for one in crowd]  # type: ignore[misc]
    others = [
        until(stop, sweep, 0.1),
        until(stop, lambda: turn(stand), 0.2),
        until(done, disturb, 0.7),
    ]
    for caller in callers:
        caller.join_answer(100)
    done.set()
    for worker in workers:
        worker.join_answer(100)
    stop.set()
    for other in others:
        other.join_answer(30)

    copies.rules("b")
    for _ in range(4):
        turn(stand)
        while waiting(stand):
            for queue in QUEUES:
                stand.work_all(queue)
    check(stand)
    for client in clients:
        for key, content in client.last.items():
            current = stand.object(copies.bucket, key).current_version_id
            assert (current is None) == (content is None)
            if current is not None and content is not None:
                assert stand.stored_bytes(current) == content
                assert copies.content(stand.version(current).blob_id, "b") == content
