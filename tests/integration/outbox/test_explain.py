"""Every hot statement on 200,000 rows: it reads what it returns, in the order of an index.

The handler counters of the session tell how many entries were read; EXPLAIN whether they were
sorted.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa

from shared.outbox.db import Database
from shared.outbox.statements import claim, end, enqueue, fill, finish, lease, park, purge, scan
from shared.outbox.window import EPOCH
from tests.servers.mariadb import MariaDB
from tests.support.schema import create_outbox

ROWS = 200_000
LIMIT = 100
FAR = dt.datetime(2000, 1, 1)

#: (states, share of the rows): each of eight tenants and four priorities has all of them.
_STATE = (
    "ELT(1 + seq % 20, 'completed', 'completed', 'completed', 'completed', 'completed', "
    "'completed', 'completed', 'completed', 'failed', 'cancelled', 'pending', 'pending', "
    "'pending', 'pending', 'scheduled', 'scheduled', 'running', 'running', 'dispatching', "
    "'dispatched')"
)


@pytest.fixture(scope="module")
def database(mariadb: MariaDB) -> Iterator[Database]:
    """A database with many rows in every state, most of them due and with expired leases."""
    name = mariadb.create_database()
    url = mariadb.url(name)
    create_outbox(url)
    engine = sa.create_engine(url)
    made = Database(engine)
    past = "UTC_TIMESTAMP(6) - INTERVAL (200000 - seq) SECOND"
    with made.transaction() as cursor:
        cursor.execute(
            "INSERT INTO tasks (queue, region, kind, tenant_id, state, priority, due_at, order_at, "
            "payload, dispatch_id, owner, fence, lease_until, created_at, finished_at, dedupe_key, "
            "idempotency_key) "
            "SELECT IF(seq % 7, 'mail', 'upload'), IF(seq % 5, '', 'eu'), 'mail.plain', "
            f"CONCAT('t', FLOOR(seq / 20) % 8), {_STATE}, FLOOR(seq / 160) % 4, {past}, {past}, "
            "'{}', LPAD(HEX(seq), 32, '0'), 'node:1', 1, "
            f"IF(1 + seq % 20 > 16, {past}, NULL), {past}, {past}, CONCAT('d', seq), "
            f"CONCAT('i', seq) FROM seq_1_to_{ROWS}"
        )
        cursor.execute(
            "INSERT INTO tasks (queue, kind, tenant_id, state, due_at, order_at, payload, "
            "created_at, resource_key) SELECT 'mail', 'mail.plain', CONCAT('t', seq % 8), "
            f"'blocked', {past}, {past}, '{{}}', {past}, CONCAT('channel:', seq % 5) "
            "FROM seq_1_to_20000"
        )
        cursor.execute(
            "INSERT INTO tasks (queue, kind, state, due_at, order_at, payload, created_at, slots, "
            f"lease_until) SELECT 'other', 'other.plain', 'running', {past}, {past}, '{{}}', "
            f"{past}, '{{}}', UTC_TIMESTAMP(6) + INTERVAL 1 DAY FROM seq_1_to_{LIMIT}"
        )
        cursor.execute(
            "INSERT INTO lanes (queue, region, tenant_id, priority, watermark, touched_at) "
            f"SELECT DISTINCT queue, region, tenant_id, priority, '{EPOCH}', '{FAR}' FROM tasks"
        )
        cursor.execute(
            "INSERT INTO task_events (task_id, type, data, created_at) "
            f"SELECT id, 'running', '{{}}', '{FAR}' FROM tasks WHERE id <= 20000"
        )
        cursor.execute(
            "INSERT INTO nodes (node, role, queues, started_at, last_seen) "
            f"SELECT CONCAT('n', seq), 'worker', '[]', '{FAR}', '{FAR}' FROM seq_1_to_2000"
        )
        cursor.execute("ANALYZE TABLE tasks, lanes, task_events, nodes")
        cursor.fetchall()
    yield made
    engine.dispose()
    mariadb.drop_database(name)


@dataclass(frozen=True)
class Hot:
    """A statement, its values (given ids of rows in a fitting state), and what it may read."""

    name: str
    text: str
    values: Callable[[list[int]], Sequence[Any]]
    state: str = "pending"
    rows: int = LIMIT
    lists: tuple[str, ...] = ()
    #: EXPLAIN does not tell of an index that is only stepped into.
    at_most: int | None = None


def _constant(*values: Any) -> Callable[[list[int]], Sequence[Any]]:
    return lambda _ids: values


def _by_ids(*before: Any, after: Sequence[Any] = ()) -> Callable[[list[int]], Sequence[Any]]:
    return lambda ids: [*before, *ids, *after]


def _with_dispatches(*before: Any, between: Sequence[Any] = ()) -> Callable[[list[int]], Any]:
    return lambda ids: [*before, *ids, *between, *(f"{task_id:032X}" for task_id in ids)]


PREFIX = "0" * 16
LANE = ("mail", "", "t3", 2)
SEARCHES = [
    Hot("fill.CLAIM", fill.CLAIM, _constant(*LANE, EPOCH, LIMIT)),
    Hot("fill.HAS_PENDING", "SELECT " + fill.HAS_PENDING, _constant(*LANE, EPOCH), rows=1),
    Hot("fill.OVERLOOKED", fill.OVERLOOKED, _constant("mail", "", -1e9, -5), rows=1),
    Hot("fill.LANES", fill.LANES, _constant("mail", ""), rows=32),
    Hot("fill.LANES_IDLE", fill.LANES_IDLE, _constant("mail", "", -60), rows=32),
    Hot("fill.IS_LANE_FRESH", fill.IS_LANE_FRESH, _constant(*LANE, -20), rows=1),
    Hot("fill.LOCK_IDLE_LANE", fill.LOCK_IDLE_LANE, _constant(*LANE, -60), rows=1),
    Hot("fill.NEXT_TENANT", fill.NEXT_TENANT, _constant("mail", "", "t3"), rows=1),
    Hot("fill.NEXT_PRIORITY", fill.NEXT_PRIORITY, _constant("mail", "", "t3", 1), rows=1),
    Hot("fill.NEXT_QUEUE", fill.NEXT_QUEUE, _constant("mail"), rows=1),
    Hot("fill.NEXT_REGION", fill.NEXT_REGION, _constant("mail", ""), rows=1),
    Hot("scan.DUE", scan.DUE, _constant("mail", "", EPOCH, LIMIT)),
    Hot("scan.DISPATCH_EXPIRED", scan.DISPATCH_EXPIRED, _constant(EPOCH, LIMIT)),
    Hot("scan.DISPATCHED", scan.DISPATCHED, _constant(EPOCH, LIMIT)),
    Hot("scan.DISPATCHED_TIE", scan.DISPATCHED_TIE, _constant(FAR, 5, LIMIT)),
    Hot("scan.LEASE_EXPIRED", scan.LEASE_EXPIRED, _constant(EPOCH, LIMIT)),
    Hot("scan.LEASE_EXPIRED_TIE", scan.LEASE_EXPIRED_TIE, _constant(FAR, 5, LIMIT)),
    Hot("scan.OLD_NODES", scan.OLD_NODES, _constant(-600, LIMIT)),
    Hot("park.NEXT_RESOURCE", park.NEXT_RESOURCE, _constant("channel:1"), rows=1),
    Hot("park.FIRST_TENANT", park.FIRST_TENANT, _constant("channel:1", ""), rows=1),
    Hot("park.NEXT_TENANT", park.NEXT_TENANT, _constant("channel:1", "t3"), rows=1),
    Hot("park.PARKED", park.PARKED, _constant(-60, "channel:1", "t3", LIMIT)),
    Hot("park.HELD", park.HELD, _constant()),
    Hot("purge.ENDED", purge.ENDED, _constant("mail", "", "completed", EPOCH, -60, LIMIT)),
    Hot("purge.OLDEST", purge.OLDEST["task_events"], _constant(LIMIT)),
    Hot("enqueue.FIND_ACTIVE", enqueue.FIND_ACTIVE, _constant("mail", "d30"), rows=1),
    Hot("enqueue.FIND_IDEMPOTENT", enqueue.FIND_IDEMPOTENT, _constant("t1", "i20"), rows=1),
]
BY_ID = [
    Hot("claim.SELECT", claim.SELECT, _by_ids(), "dispatched", lists=("ids",)),
    Hot("claim.TAKE", claim.TAKE, _by_ids("node:2", 45), "dispatched", lists=("ids",)),
    Hot("finish.SELECT_READY", finish.SELECT_READY, _by_ids(), "running", lists=("ids",)),
    Hot("finish.COMPLETE", finish.COMPLETE, _by_ids(), "running", lists=("ids",)),
    Hot("finish.LOOK", finish.LOOK, _by_ids(), "running", lists=("ids",)),
    Hot("lease.LOCK_RUNNING", lease.LOCK_RUNNING, _by_ids(), "running", lists=("ids",)),
    Hot("lease.LOOK_RUNNING", lease.LOOK_RUNNING, _by_ids(), "running", lists=("ids",)),
    Hot(
        "lease.RENEW",
        lease.RENEW,
        lambda ids: [45, *ids, *(["node:1"] * len(ids))],
        "running",
        lists=("ids", "owners"),
    ),
    Hot("end.READ", end.READ, _by_ids(), "running", lists=("ids",)),
    Hot("end.LOCK", end.LOCK, _by_ids(), "running", lists=("ids",)),
    Hot(
        "enqueue.MARK_DISPATCHED",
        enqueue.MARK_DISPATCHED,
        _with_dispatches(5),
        "dispatching",
        lists=("ids", "dispatches"),
    ),
    Hot("fill.TAKE", fill.TAKE, _by_ids(PREFIX, 30), lists=("ids",)),
    Hot(
        "fill.MARK_DISPATCHED",
        fill.MARK_DISPATCHED,
        _by_ids(5, after=[PREFIX]),
        "dispatching",
        lists=("ids",),
    ),
    Hot(
        "fill.LOCK_DISPATCHING",
        fill.LOCK_DISPATCHING,
        _by_ids(after=[PREFIX]),
        "dispatching",
        lists=("ids",),
    ),
    Hot("scan.MAKE_PENDING", scan.MAKE_PENDING, _by_ids(), "scheduled", lists=("ids",)),
    Hot(
        "scan.TAKE_BACK",
        scan.TAKE_BACK,
        _with_dispatches(between=["dispatched"]),
        "dispatched",
        lists=("ids", "dispatches"),
    ),
    Hot("scan.LOCK_EXPIRED", scan.LOCK_EXPIRED, _by_ids(), "running", lists=("ids",)),
    Hot(
        "scan.RECOVER",
        scan.RECOVER,
        lambda ids: [5, ids[0], "node:1", 1],
        "running",
        rows=1,
    ),
    Hot(
        "purge.LOCK_ENDED",
        purge.LOCK_ENDED,
        _by_ids(after=["completed", -60, 0]),
        "completed",
        lists=("ids",),
    ),
    Hot("purge.DROP_TASK", purge.DROP_TASK, lambda ids: [ids[0], "completed"], "completed", rows=1),
]


def _ids(cursor: Any, state: str) -> list[int]:
    cursor.execute(
        "SELECT id FROM tasks FORCE INDEX (ix_tasks_due) WHERE queue = 'mail' AND region = '' "
        "AND state = %s ORDER BY due_at LIMIT %s",
        (state, LIMIT),
    )
    return sorted(int(row[0]) for row in cursor.fetchall())


def _read_entries(cursor: Any) -> int:
    cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
    return sum(int(value) for _, value in cursor.fetchall())


@pytest.mark.parametrize("hot", [*SEARCHES, *BY_ID], ids=lambda hot: hot.name)
def test_a_hot_statement_reads_what_it_needs(database: Database, hot: Hot) -> None:
    dialect = database.dialect
    with database.transaction() as cursor:
        ids = _ids(cursor, hot.state)
        assert len(ids) == LIMIT
        text = dialect.sql_ids(hot.text, **dict.fromkeys(hot.lists, LIMIT))
        values = hot.values(ids)
        cursor.execute("EXPLAIN " + text, values)
        plan = cursor.fetchall()
        extra = " ".join(str(row[-1]) for row in plan)
        assert "filesort" not in extra, plan
        assert "temporary" not in extra, plan
        assert all(row[3] != "ALL" for row in plan), plan
        # What the session's own tables cost is read first, and taken off.
        before = _read_entries(cursor)
        idle = _read_entries(cursor) - before
        before = _read_entries(cursor)
        cursor.execute(text, values)
        found = cursor.fetchall() if cursor.description else ()
        read = _read_entries(cursor) - before - idle
        # Each list of ids or range ends with one look beyond.
        assert read <= 2 * hot.rows + 2, (read, plan)
        # A search that found nothing would prove nothing.
        if hot in SEARCHES and "TIE" not in hot.name and "FRESH" not in hot.name:
            assert len(found) == hot.rows
        cursor.connection.rollback()


@pytest.mark.parametrize("state", ["dispatching", "dispatched"])
def test_the_count_of_a_window_reads_only_the_window(database: Database, state: str) -> None:
    with database.transaction() as cursor:
        cursor.execute(
            "SELECT COUNT(*) FROM tasks WHERE queue = 'mail' AND region = '' AND state = %s",
            (state,),
        )
        rows = cursor.fetchone()[0]
        values = ("mail", "", state, EPOCH)
        text = database.dialect.sql(fill.COUNT_WINDOW)
        cursor.execute("EXPLAIN " + text, values)
        plan = cursor.fetchall()
        assert "Using index" in str(plan[0][-1])
        before = _read_entries(cursor)
        idle = _read_entries(cursor) - before
        before = _read_entries(cursor)
        cursor.execute(text, values)
        assert cursor.fetchone()[0] == rows
        assert _read_entries(cursor) - before - idle <= rows + 2


def test_a_bound_keeps_a_search_from_what_lies_below(database: Database) -> None:
    """The same page costs the same wherever it lies."""
    with database.transaction() as cursor:
        cursor.execute(
            "SELECT order_at FROM tasks WHERE queue = 'mail' AND region = '' AND state = 'pending' "
            "AND tenant_id = 't3' AND priority = 2 ORDER BY order_at DESC LIMIT 1 OFFSET 50"
        )
        bound = cursor.fetchone()[0]
        before = _read_entries(cursor)
        idle = _read_entries(cursor) - before
        before = _read_entries(cursor)
        cursor.execute(database.dialect.sql(fill.CLAIM), (*LANE, bound, LIMIT))
        assert len(cursor.fetchall()) == 51
        assert _read_entries(cursor) - before - idle <= 53
        cursor.connection.rollback()
