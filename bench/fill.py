"""The filler alone: a claim on few and on many rows, and beside somebody's old snapshot."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pymysql
import sqlalchemy as sa

from bench.stage import Line, Stage, at_least, at_most, median, stage
from shared.outbox.backlog import Backlog
from shared.outbox.filler import Filler
from shared.outbox.nodes import NodeWriter
from shared.outbox.pages import Pages
from shared.outbox.schema import metadata
from shared.outbox.window import Place

FEW, MANY = 20_000, 5_000_000
#: Rows of one claim, and how many claims are timed on each table.
CLAIM, CLAIMS = 100, 101
#: Rows that pass while a snapshot is held, in so many rounds.
PASSED, ROUNDS = 80_000, 20
TENANTS = 20
_INSERT_ROWS = 250_000
_BUFFER_POOL_BYTES = 6 * 1024**3


def run() -> Iterable[Line]:
    """Measure and compare."""
    with stage(buffer_pool_bytes=_BUFFER_POOL_BYTES) as stage_:
        yield speed(stage_)
        yield from snapshot(stage_)
        yield claims(stage_)


def insert(stage_: Stage, count: int, database: str) -> None:
    """Insert pending rows of several tenants, created a second ago and before."""
    for start in range(0, count, _INSERT_ROWS):
        rows = min(_INSERT_ROWS, count - start)
        stage_.mariadb.execute(
            f"INSERT INTO {database}.tasks (queue, kind, tenant_id, state, priority, due_at, "
            "order_at, payload, created_at) "
            f"SELECT 'bench', 'bench.nothing', CONCAT('t', seq % {TENANTS}), 'pending', 1, "
            "UTC_TIMESTAMP(6) - INTERVAL 10 SECOND + INTERVAL seq MICROSECOND, "
            "UTC_TIMESTAMP(6) - INTERVAL 10 SECOND + INTERVAL seq MICROSECOND, "
            f'\'{{"v":1,"p":{{}}}}\', UTC_TIMESTAMP(6) FROM {database}.seq_1_to_{rows}'
        )


def speed(stage_: Stage) -> Line:
    """Return how many rows per second go to Redis, nobody else working."""
    stage_.reset()
    insert(stage_, 50_000, stage_.database_url_name)
    outbox = stage_.outbox()
    node = NodeWriter(outbox.context)
    filler = Filler(outbox.context)
    start = time.perf_counter()
    moved = 0
    while moved < 50_000:
        _be_alive(node, 100)
        moved += filler.run_once()
    rate = moved / (time.perf_counter() - start)
    filler.close()
    outbox.close()
    return at_least(
        "rows per second into the window, against 15,000", rate / 15_000, 1, f"{rate:,.0f}/s"
    )


def claims(stage_: Stage) -> Line:
    """Return what a claim of 100 costs on five million rows, against twenty thousand."""
    stage_.reset()
    few = stage_.database_url_name
    many = stage_.mariadb.create_database("bench_many")
    engine = sa.create_engine(stage_.mariadb.url(many))
    metadata.create_all(engine)
    engine.dispose()
    insert(stage_, FEW, few)
    insert(stage_, MANY, many)
    times: dict[str, list[float]] = {few: [], many: []}
    runs = {name: _claims(stage_.mariadb.url(name), stage_.redis.url) for name in (few, many)}
    for _ in range(CLAIMS):
        for name, claim in runs.items():
            times[name].append(next(claim))
    for claim in runs.values():
        claim.close()
    # The first ones read what the others find in memory.
    base, loaded = median(times[few][5:]), median(times[many][5:])
    return at_most(
        f"a claim of {CLAIM} on {MANY:,} rows, against {FEW:,}",
        loaded / base,
        1.3,
        "x",
        f"{loaded * 1000:.2f} ms, {base * 1000:.2f} ms",
    )


def _claims(database_url: str, redis_url: str) -> Iterator[float]:
    from shared.outbox.outbox import Outbox

    engine = sa.create_engine(database_url)
    outbox = Outbox(engine, redis_url, namespace="claims")
    line = outbox.context.db.line()
    pages = Pages(outbox.context, line)
    backlog = Backlog(outbox.context, Place("bench", ""))
    try:
        while True:
            backlog.look(line)
            backlog.begin(CLAIM)
            start = time.perf_counter()
            page = pages.claim(backlog, CLAIM)
            yield time.perf_counter() - start
            assert page is not None
            assert len(page.rows) == CLAIM
    finally:
        line.close()
        outbox.close()
        engine.dispose()


def snapshot(stage_: Stage) -> Iterator[Line]:
    """Return the filler's last rate over 80,000 tasks against its first, a snapshot held open."""
    stage_.reset()
    insert(stage_, PASSED, stage_.database_url_name)
    outbox = stage_.outbox()
    part = PASSED // ROUNDS
    # The window takes one part at a time: its workers are played below.
    node = NodeWriter(outbox.context)
    filler = Filler(outbox.context)
    rates: list[float] = []
    with _old_snapshot(stage_):
        for _ in range(ROUNDS):
            start = time.perf_counter()
            moved = 0
            while moved < part:
                _be_alive(node, part // 1000)
                moved += filler.run_once()
            rates.append(moved / (time.perf_counter() - start))
            scripts = outbox.context.scripts
            outbox.context.redis.delete(scripts.list_key("bench"), scripts.messages_key("bench"))
            _play_workers(stage_)
    filler.close()
    outbox.close()
    first, last = median(rates[:3]), median(rates[-3:])
    yield at_least(
        f"the filler's last round over {PASSED:,} tasks beside an old snapshot, against its first",
        last / first,
        0.9,
        f"{last:,.0f}/s, {first:,.0f}/s",
    )


def _be_alive(node: NodeWriter, threads: int) -> None:
    """Pretend a consumer whose window is a thousand tasks for each thread."""
    node.write(role="worker", queues=["bench"], threads=threads, mean_seconds={"bench": 1e-5})


@contextmanager
def _old_snapshot(stage_: Stage) -> Iterator[None]:
    url = sa.make_url(stage_.database_url)
    connection = pymysql.connect(
        host=url.host,
        port=url.port or 0,
        user=url.username,
        password=url.password or "",
        database=url.database,
    )
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        cursor.execute("SELECT COUNT(*) FROM lanes")
        try:
            yield
        finally:
            connection.rollback()
            connection.close()


def _play_workers(stage_: Stage) -> None:
    """Run and complete what was dispatched, as far as the rows tell."""
    name = stage_.database_url_name
    for state, before in (("running", "dispatched"), ("completed", "running")):
        stage_.mariadb.execute(
            f"UPDATE {name}.tasks SET state = '{state}', lease_until = "
            f"IF('{state}' = 'running', UTC_TIMESTAMP(6) + INTERVAL 45 SECOND, NULL) "
            f"WHERE state = '{before}'"
        )
