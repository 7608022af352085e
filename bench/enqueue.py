"""What an enqueue costs its caller, and how long a rare task waits for its handler.

Enqueueing is compared with a bare INSERT of the same row in the same kind of Session with its
commit, and with a raw cursor; a hundred in one call with Dramatiq's sends; latency with Celery.
"""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable

import redis
import sqlalchemy as sa
from sqlalchemy.orm import Session

from bench.stage import ROOT, Line, Stage, Workers, at_least, at_most, median, stage
from bench.worker import Nothing
from shared.outbox import Kind
from shared.outbox.outbox import Outbox

CALLS = 1_000
ROUNDS = 7
RARE = 500
#: Seconds between rare tasks: far above what one of them takes.
RARE_EVERY = 0.02

NOTHING = Kind(name="bench.nothing", payload=Nothing)
_INSERT = (
    "INSERT INTO tasks (queue, region, kind, tenant_id, state, priority, payload, max_attempts, "
    "dispatch_id, due_at, order_at, lease_until, created_at) VALUES ({}, {}, {}, {}, {}, {}, {}, "
    "{}, {}, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL 30 SECOND, "
    "UTC_TIMESTAMP(6))"
)
_NAMES = ("queue", "region", "kind", "tenant", "state", "priority", "payload", "tries", "dispatch")


class _Credits:
    """A producer that always holds a credit: every row is born dispatching and pushed."""

    def take(self, queue_name: str, tenant_id: str) -> bool:
        """Give one."""
        return True

    def mark_backlog(self, queue_name: str, tenant_id: str) -> None:
        """Nothing waits here."""

    def refresh(self) -> None:
        """Nothing to read."""


def per_second(count: int, work: Callable[[], None]) -> float:
    """Return how many units of `work` (which does `count`) happen in a second."""
    start = time.perf_counter()
    work()
    return count / (time.perf_counter() - start)


def values() -> tuple[object, ...]:
    """Return the values of one row."""
    body = '{"v":1,"p":{"number":1}}'
    return ("bench", "", "bench.nothing", "", "dispatching", 1, body, 12, uuid.uuid4().hex)


def enqueue_rates(stage_: Stage) -> dict[str, list[float]]:
    """Measure the ways to write one row with its commit, interleaved."""
    outbox = stage_.outbox()
    outbox.register(NOTHING)
    outbox._enqueuer._births.credits = (
        _Credits()
    )  # every call takes the whole way, push and mark included
    outbox.start_producer()
    engine = outbox.context.db.engine
    insert = sa.text(_INSERT.format(*(f":{name}" for name in _NAMES)))
    raw = _INSERT.format(*["%s"] * len(_NAMES))
    line = outbox.context.db.line()

    def ours() -> None:
        for number in range(CALLS):
            with Session(engine) as session, session.begin():
                outbox.enqueue(session, NOTHING, Nothing(number=number))

    def bare() -> None:
        for _ in range(CALLS):
            with Session(engine) as session, session.begin():
                session.execute(insert, dict(zip(_NAMES, values(), strict=True)))

    def cursor() -> None:
        for _ in range(CALLS):
            with line.transaction() as one:
                one.execute(raw, values())

    def hundred() -> None:
        for _ in range(CALLS // 100):
            with Session(engine) as session, session.begin():
                outbox.enqueue_many(session, NOTHING, [Nothing(number=n) for n in range(100)])

    rates: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for name, work in (("ours", ours), ("bare", bare), ("cursor", cursor), ("many", hundred)):
            rates.setdefault(name, []).append(per_second(CALLS, work))
            _settle(outbox)
        rates.setdefault("dramatiq", []).append(dramatiq_sends(stage_.redis.url))
    outbox.close()
    return rates


def _settle(outbox: Outbox) -> None:
    # What the dispatcher has left to do belongs to no other measurement.
    while outbox._dispatcher._items.qsize() or outbox._dispatcher._unmarked:
        time.sleep(0.05)


def dramatiq_sends(redis_url: str) -> float:
    """Return Dramatiq's sends per second to Redis."""
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    broker = RedisBroker(url=redis_url, namespace="plain-sends")
    actor = dramatiq.actor(
        lambda _number: None, actor_name="plain", queue_name="plain", broker=broker
    )

    def send() -> None:
        for number in range(CALLS):
            actor.send(number)

    return per_second(CALLS, send)


def our_latency(stage_: Stage) -> list[float]:
    """Return the seconds from commit to handler start of rare tasks."""
    client = redis.Redis.from_url(stage_.redis.url)
    outbox = stage_.outbox()
    outbox.register(NOTHING)
    workers = Workers(
        2,
        "outbox",
        f"--database-url={stage_.database_url}",
        f"--redis-url={stage_.redis.url}",
        "--latency-key=ours",
    )
    outbox.start_producer()
    scheduler = outbox.compensator()
    stopping = _thread(scheduler.run)
    try:
        workers.go()
        time.sleep(4)  # nodes are seen, credits are dealt
        committed_at: dict[int, float] = {}
        for number in range(RARE):
            with Session(outbox.context.db.engine) as session, session.begin():
                outbox.enqueue(session, NOTHING, Nothing(number=number))
            committed_at[number] = time.time()
            time.sleep(RARE_EVERY)
        started = _collect(client, "ours")
        return sorted(
            float(at) - committed_at[int(number)]
            for number, at in (value.split(b":") for value in started)
        )
    finally:
        workers.stop()
        stopping()
        outbox.close()


def celery_latency(redis_url: str) -> list[float]:
    """Return the seconds from send to task start of Celery on the same Redis."""
    client = redis.Redis.from_url(redis_url)
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.celery_worker", redis_url],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        from bench.celery_worker import make_app

        app = make_app(redis_url)
        app.send_task("bench.rare", args=[time.time()])
        if client.blpop(["celery-booted"], timeout=60) is None:
            raise RuntimeError("the Celery worker did not boot")
        client.delete("celery-latency")
        for _ in range(RARE):
            app.send_task("bench.rare", args=[time.time()])
            time.sleep(RARE_EVERY)
        return sorted(float(value) for value in _collect(client, "celery-latency"))
    finally:
        process.terminate()
        process.wait(30)


def _collect(client: redis.Redis, key: str) -> list[bytes]:
    end = time.monotonic() + 20
    while client.llen(key) < RARE and time.monotonic() < end:
        time.sleep(0.05)
    found: list[bytes] = client.lrange(key, 0, -1)
    return found


def _thread(run: Callable[..., None]) -> Callable[[], None]:
    import threading

    stopping = threading.Event()
    thread = threading.Thread(target=run, args=(stopping,), daemon=True)
    thread.start()

    def stop() -> None:
        stopping.set()
        thread.join(10)

    return stop


def run() -> Iterable[Line]:
    """Measure and compare."""
    with stage() as stage_:
        rates = {name: median(found) for name, found in enqueue_rates(stage_).items()}
        stage_.reset()
        ours = our_latency(stage_)
        theirs = celery_latency(stage_.redis.url)
    mine = rates["ours"]
    yield at_least(
        "enqueue in the caller's Session, against a bare INSERT there",
        mine / rates["bare"],
        0.9,
        f"{mine:,.0f}/s, bare {rates['bare']:,.0f}/s",
    )
    yield at_least(
        "the same, against a raw cursor",
        mine / rates["cursor"],
        0.7,
        f"{mine:,.0f}/s, raw {rates['cursor']:,.0f}/s",
    )
    yield at_least(
        "100 in a call, against Dramatiq's sends",
        rates["many"] / rates["dramatiq"],
        3,
        f"{rates['many']:,.0f}/s, Dramatiq {rates['dramatiq']:,.0f}/s",
    )
    if len(ours) < RARE or len(theirs) < RARE:
        raise RuntimeError(f"of {RARE} rare tasks only {len(ours)} and {len(theirs)} ran")
    p50, p99 = ours[len(ours) // 2] * 1e3, ours[int(len(ours) * 0.99)] * 1e3
    yield at_most("commit to handler start, p50", p50, 3, "ms", f"{RARE} tasks")
    yield at_most("commit to handler start, p99", p99, 8, "ms")
    celery = theirs[len(theirs) // 2] * 1e3
    yield at_most("p50 against Celery's", p50 / celery, 1.5, "x", f"Celery {celery:.2f} ms")
