"""Statements of the enqueuing transaction and of the dispatcher after it."""

from __future__ import annotations

#: One row; the two `_plus` marks take seconds, or NULL for "none".
COLUMNS = (
    "queue, region, kind, tenant_id, state, priority, payload, dedupe_key, idempotency_key, "
    "parent_id, max_attempts, dispatch_id, trace_parent, due_at, order_at, lease_until, created_at"
)
#: Due after some seconds of the database's clock (0 for now).
ROW = (
    "({p}, {p}, {p}, {p}, {p}, {p}, {p}, {p}, {p}, {p}, {p}, {p}, {p}, "
    "{now_plus}, {now_plus}, {now_plus}, {now})"
)
#: Due at a moment that the caller names. One that has passed counts as now by the database's clock,
#: so that the scans' bounds hold, whatever the caller's clock says.
ROW_AT = (
    "({p}, {p}, {p}, {p}, {p}, {p}, {p}, {p}, {p}, {p}, {p}, {p}, {p}, "
    "{now_or_later}, {now_or_later}, {now_plus}, {now})"
)
INSERT = "INSERT INTO tasks (" + COLUMNS + ") VALUES "

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
