"""A limit over several processes, counted by the resource itself, through kills and losses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.outbox.histories import history_breaches
from shared.outbox.schema import task_events, tasks
from tests.servers.redis import RedisServer
from tests.support.eventually import eventually
from tests.support.outbox import Bench
from tests.support.slot_worker import USE, Counter, SlotWorker, Use

pytestmark = pytest.mark.databases("mariadb")
LEASE_SECONDS = 3.0
PATIENCE_SECONDS = 60.0


class Scene:
    """A resource, its tasks, and the workers that a test starts."""

    def __init__(self, url: str, redis_url: str, namespace: str, directory: Path) -> None:
        self._arguments = (url, redis_url, namespace, directory)
        self.directory = directory
        self.bench = Bench(url, redis_url, namespace=namespace, kinds=[USE])
        self.counter = Counter(directory)
        self.namespace = namespace
        self.allow(1)

    def allow(self, limit: int) -> None:
        """Set the limit."""
        fresh = self.directory / "limit.new"
        fresh.write_text(str(limit))
        fresh.rename(self.directory / "limit")

    def worker(self, failpoints: str = "") -> SlotWorker:
        """Start a worker process."""
        return SlotWorker(*self._arguments, lease_seconds=LEASE_SECONDS, failpoints=failpoints)

    def put(self, count: int = 1, *, tenant_id: str = "acme", **use: Any) -> list[int]:
        """Enqueue tasks."""
        with Session(self.bench.engine) as session, session.begin():
            made = self.bench.enqueuer.enqueue_many(
                session, USE, [Use(**use)] * count, tenant_id=tenant_id
            )
        return [one.id for one in made]

    def count(self, state: str) -> int:
        """Return how many tasks are in a state."""
        with self.bench.engine.connect() as connection:
            found = connection.scalar(
                sa.select(sa.func.count()).select_from(tasks).where(tasks.c.state == state)
            )
        return int(found or 0)

    def signal(self, name: str) -> None:
        """Let those inside come out that wait for this file."""
        (self.directory / name).touch()

    def inside(self) -> list[int]:
        """Return the tasks that are inside, or died there."""
        return [int(path.name.split("-")[1]) for path in self.counter.files()]

    def await_states(self, **wanted: int) -> None:
        """Wait until so many tasks are in these states."""
        eventually(
            lambda: all(self.count(state) == number for state, number in wanted.items()),
            PATIENCE_SECONDS,
            message=f"{wanted}",
        )

    def check(self, count: int) -> None:
        """All are completed by one attempt each, and every move was legal."""
        self.await_states(completed=count)
        with self.bench.engine.connect() as connection:
            attempts = set(connection.scalars(sa.select(tasks.c.attempt)))
            left = connection.scalars(
                sa.select(tasks.c.id).where(
                    sa.or_(tasks.c.slots.is_not(None), tasks.c.resource_key.is_not(None))
                )
            ).all()
        assert (attempts, left) == ({1}, [])
        now = self.bench.read(self.bench.put(USE)).now
        with Session(self.bench.engine) as session:
            assert list(history_breaches(session, before=now)) == []


@pytest.fixture
def scene(outbox_url: str, redis_url: str, namespace: str, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(outbox_url, redis_url, namespace, tmp_path)
    yield made
    made.bench.close()


@pytest.fixture
def frail(
    outbox_url: str, private_redis: RedisServer, namespace: str, tmp_path: Path
) -> Iterator[Scene]:
    """The same on a Redis of its own."""
    made = Scene(outbox_url, private_redis.url, namespace, tmp_path)
    yield made
    made.bench.close()


def test_two_hundred_tasks_over_two_places(scene: Scene) -> None:
    scene.allow(2)
    rich = scene.put(190, tenant_id="rich", seconds=0.005)
    poor = scene.put(10, tenant_id="poor", seconds=0.005)
    with scene.worker(), scene.worker():
        scene.await_states(completed=200)
    assert scene.counter.most() == 2
    order = [task_id for task_id, _, _ in scene.counter.entries()]
    assert sorted(order) == sorted([*rich, *poor])
    # The tenants are served in turn: the small one is done long before the large one.
    assert max(order.index(task_id) for task_id in poor) < 80
    scene.check(200)


def test_killed_holder_frees_its_place_for_one(scene: Scene) -> None:
    with scene.worker() as doomed:
        (held,) = scene.put(until="done", seconds=60)
        eventually(lambda: scene.inside() == [held], PATIENCE_SECONDS)
        waiting = scene.put(3, seconds=0.1)
        scene.await_states(blocked=3)
        doomed.kill()
    scene.signal("done")
    with scene.worker():
        scene.check(4)
    assert scene.counter.most() == 1
    with scene.bench.engine.connect() as connection:
        woken = connection.execute(
            sa.select(task_events.c.task_id, task_events.c.data).where(
                task_events.c.type == "pending", task_events.c.task_id.in_(waiting)
            )
        ).all()
    # Nobody was woken for nothing: each of them once, for a place of its own.
    assert [row.task_id for row in woken if row.data["from"] == "blocked"] == waiting


def test_death_at_every_step_holds_nobody_up_for_good(scene: Scene) -> None:
    points = (
        *("rebuild.locked", "rebuild.read", "slots.acquired", "slots.written"),
        *("slots.before_release", "parking.reserved", "parking.woken", "scan.parked"),
    )
    for point in points:
        scene.put(3, seconds=0.05, resource=f"channel:{point}")
        with scene.worker(f"{point}=kill") as doomed:
            # It does not pass by this point, whatever else it does before.
            eventually(lambda doomed=doomed: doomed.process.poll() == -9, PATIENCE_SECONDS)
    with scene.worker():
        scene.check(3 * len(points))
    assert scene.counter.most() == 1


@pytest.mark.parametrize("loss", ["flush", "restart", "restore"])
def test_place_is_kept_through_the_loss_of_redis(
    frail: Scene, private_redis: RedisServer, loss: str
) -> None:
    with frail.worker():
        (held,) = frail.put(until="done", seconds=60)
        eventually(lambda: frail.inside() == [held], PATIENCE_SECONDS)
        waiting = frail.put(3, seconds=0.01)
        frail.await_states(blocked=3)
        _lose(private_redis, loss)
        frail.put(2, seconds=0.01)
        # The newcomers find the place taken: the rows said so.
        frail.await_states(blocked=5, running=1)
        assert [task for task, _, _ in frail.counter.entries()] == [held]
        frail.signal("done")
        frail.check(6)
    assert frail.counter.most() == 1
    assert set(waiting) < {task for task, _, _ in frail.counter.entries()}


def test_without_redis_parked_tasks_wait_and_nothing_runs_unlimited(
    frail: Scene, private_redis: RedisServer
) -> None:
    with frail.worker():
        (held,) = frail.put(until="done", seconds=60)
        eventually(lambda: frail.inside() == [held], PATIENCE_SECONDS)
        frail.put(3, seconds=0.01)
        frail.await_states(blocked=3)
        private_redis.stop()
        frail.signal("done")
        frail.await_states(completed=1, blocked=3)
        assert [task for task, _, _ in frail.counter.entries()] == [held]
        private_redis.start()
        frail.check(4)
    assert frail.counter.most() == 1


def _lose(server: RedisServer, loss: str) -> None:
    if loss == "flush":
        server.flush()
        return
    saved: dict[str, tuple[int, bytes]] = {}
    if loss == "restore":
        with server.client() as client:
            raw = type(client).from_url(server.url)
            saved = {key: (max(0, raw.pttl(key)), raw.dump(key)) for key in raw.keys("*")}
            raw.close()
    server.restart()
    if saved:
        with server.client() as client:
            raw = type(client).from_url(server.url)
            for key, (left, dump) in saved.items():
                raw.restore(key, left, dump, replace=True)
            raw.close()
