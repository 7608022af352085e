"""Statements of the enqueuing transaction and of the dispatcher after it."""

from __future__ import annotations

from collections.abc import Sequence

COLUMNS = (
    "queue, region, kind, tenant_id, state, priority, payload, dedupe_key, idempotency_key, "
    "parent_id, max_attempts, dispatch_id, trace_parent, due_at, order_at, lease_until, created_at"
)
INSERT = "INSERT INTO tasks (" + COLUMNS + ") VALUES "


def row(state: str, given: Sequence[bool], due: str) -> str:
    """Return the marks of one row: parameters only for what differs from row to row.

    `given` tells of dedupe key, idempotency key, parent, dispatch id and trace whether they are
    there; `due` is the token of `due_at` and `order_at`: `now`, `now_plus` (seconds) or
    `now_or_later` (a moment that the caller names; one that has passed counts as now by the
    database's clock, so that the scans' bounds hold, whatever the caller's clock says).
    """
    dedupe, idempotency, parent, dispatch, trace = (
        "{p}" if is_there else "NULL" for is_there in given
    )
    lease = "NULL" if dispatch == "NULL" else "{now_plus}"
    return (
        f"({{p}}, {{p}}, {{p}}, {{p}}, '{state}', {{p}}, {{p}}, {dedupe}, {idempotency}, {parent}, "
        f"{{p}}, {dispatch}, {trace}, {{{due}}}, {{{due}}}, {lease}, {{now}})"
    )


FIND_ACTIVE = "SELECT id FROM tasks WHERE queue = {p} AND dedupe_active = {p}"
FIND_IDEMPOTENT = "SELECT id FROM tasks WHERE tenant_id = {p} AND idempotency_key = {p}"

#: Redis has the messages. The lease tells the scan from when on to look for them there.
MARK_DISPATCHED = (
    "UPDATE tasks {by_primary} SET state = 'dispatched', lease_until = {now_plus}, "
    "dispatch_failures = 0 "
    "WHERE id IN (%(ids)s) AND state = 'dispatching' AND dispatch_id IN (%(dispatches)s)"
)
#: Redis refused them: back to wait. The dispatch id stays and means nothing in this state.
MARK_REFUSED = (
    "UPDATE tasks {by_primary} SET state = 'scheduled', lease_until = NULL, "
    "dispatch_failures = dispatch_failures + 1, due_at = {now_plus} "
    "WHERE id IN (%(ids)s) AND state = 'dispatching' AND dispatch_id IN (%(dispatches)s)"
)
