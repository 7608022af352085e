"""Statements on rows that are known by id go by PRIMARY, whatever the table holds."""

from __future__ import annotations

from typing import Any

import pytest

from shared.outbox.statements import end, lease, park
from tests.support.outbox import Bench

ROWS = 200_000
IDS = 100
#: Statements with a list of ids, and what their other marks may be bound to.
GROUPED = {
    "renewal, locks": (lease.LOCK_RUNNING, "{ids}"),
    "renewal, look": (lease.LOOK_RUNNING, "{ids}"),
    "renewal, update": (lease.RENEW, "45 {ids} {owners}"),
    "ends, read": (end.READ, "{ids}"),
    "ends, locks": (end.LOCK, "{ids}"),
    "give back": (end.GIVE_BACK, "{ids} {owners}"),
    "parked, locks": (park.LOCK_PARKED, "{ids} resource"),
    "parked, update": (park.UNPARK, "slots {ids} resource"),
    "parked, count": (park.STILL_PARKED, "{ids} resource"),
}
SINGLE = {
    "checkpoint": (lease.SAVE_CHECKPOINT, ("{}", 1, 1, 8, "o8", 1)),
    "slots": (park.SET_SLOTS, ("{}", 8, "o8", 1)),
    "event": (lease.LOCK_OWN, (8, "o8", 1)),
    "completion": (end.COMPLETE, ("{}", 8, "o8", 1)),
    "end of a running one": (end.END_RUNNING, ("failed", 1, "c", "d", 0, 0, 8, "o8", 1)),
    "end of a waiting one": (end.END_WAITING, ("cancelled", "c", "d", 9, "pending", 1)),
    "retry": (end.RESCHEDULE, ("scheduled", 1, 2.0, "c", "d", None, 8, "o8", 1)),
    "cancel": (end.REQUEST_CANCEL, ("cancelled", "d", 8, "o8", 1)),
    "manual retry": (end.REVIVE, ("x", 11, "failed", 1)),
    "dispatch now": (end.MAKE_DUE, (9, 1)),
}


def _explain(cursor: Any, sql: str, values: Any) -> list[Any]:
    cursor.execute("EXPLAIN " + sql, values)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


@pytest.mark.databases("mariadb")
def test_plans_on_two_hundred_thousand_rows(bench: Bench) -> None:
    dialect = bench.context.db.dialect
    with bench.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO tasks (queue, kind, state, due_at, order_at, created_at, payload, owner, "
            "fence, lease_until) SELECT 'mail', 'mail.send', "
            "ELT(1 + seq %% 4, 'running', 'pending', 'completed', 'failed'), NOW(6), NOW(6), "
            "NOW(6), '{}', CONCAT('o', seq %% 16), 1, NOW(6) + INTERVAL 45 SECOND "
            f"FROM seq_1_to_{ROWS}"
        )
    with bench.engine.connect() as connection:
        connection.exec_driver_sql("ANALYZE TABLE tasks").all()
    ids = list(range(1000, 1000 + 4 * IDS, 4))
    owners = [f"o{number}" for number in range(16)]
    bound = {"{ids}": ids, "{owners}": owners, "45": [45], "slots": [None], "resource": ["a"]}
    for name, (text, order) in GROUPED.items():
        sql = dialect.sql_ids(text, ids=len(ids), owners=len(owners))
        values = [value for word in order.split() for value in bound[word]]
        with bench.context.db.transaction() as cursor:
            (plan,) = _explain(cursor, sql, values)
        assert plan["key"] == "PRIMARY", (name, plan)
        assert int(plan["rows"]) <= 2 * IDS, (name, plan)
        assert "filesort" not in (plan["Extra"] or ""), (name, plan)
    for name, (text, single) in SINGLE.items():
        with bench.context.db.transaction() as cursor:
            (plan,) = _explain(cursor, dialect.sql(text), single)
        assert plan["key"] == "PRIMARY", (name, plan)
        assert int(plan["rows"]) <= 2, (name, plan)
        assert "filesort" not in (plan["Extra"] or ""), (name, plan)
