"""Statements of `shared.outbox.testing`: filler, dispatcher and worker in one thread."""

from __future__ import annotations

NEXT = (
    "SELECT id, queue, region FROM tasks WHERE state = 'pending' "
    "ORDER BY priority, order_at, id LIMIT 1 {for_update}"
)
DISPATCH = (
    "UPDATE tasks {by_primary} SET state = 'dispatching', dispatch_id = {p}, "
    "lease_until = {now_plus} WHERE id = {p} AND state = 'pending'"
)
MAKE_DUE = "UPDATE tasks SET state = 'pending', due_at = {now} WHERE state = 'scheduled'"
WAKE_PARKED = (
    "UPDATE tasks SET state = 'pending', resource_key = NULL, due_at = {now} "
    "WHERE state = 'blocked' AND resource_key IS NOT NULL"
)
LOOK = "SELECT kind, state, error_code, result FROM tasks WHERE id = {p}"
