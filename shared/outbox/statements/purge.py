"""Statements of housekeeping: rows whose time is over, in small pages, dropped one by one by id."""

from __future__ import annotations

#: A task's end is never before the moment it was due, so the due time orders and bounds the search.
ENDED = (
    "SELECT id, due_at FROM tasks {by_due} WHERE queue = {p} AND region = {p} AND state = {p} "
    "AND due_at >= {p} AND due_at < {now_plus} ORDER BY due_at, id LIMIT {p}"
)
#: A task whose idempotency key must still answer stays; so does the failed head of an ordering key.
LOCK_ENDED = (
    "SELECT id FROM tasks {by_primary} WHERE id IN (%(ids)s) AND state = {p} "
    "AND finished_at < {now_plus} "
    "AND (idempotency_key IS NULL OR created_at < {now_plus}) "
    "AND (ordering_key IS NULL OR state <> 'failed') AND batch_id IS NULL "
    "ORDER BY id {skip_locked}"
)
#: As LOCK_ENDED for rows that their owner has named: whatever their end, however long ago.
LOCK_NAMED = (
    "SELECT id, state FROM tasks {by_primary} WHERE id IN (%(ids)s) "
    "AND state IN ('completed', 'failed', 'cancelled') "
    "AND (idempotency_key IS NULL OR created_at < {now_plus}) "
    "AND ordering_key IS NULL AND batch_id IS NULL ORDER BY id {skip_locked}"
)
DROP_ATTEMPTS = "DELETE FROM task_attempts WHERE task_id = {p}"
DROP_EVENTS = "DELETE FROM task_events WHERE task_id = {p}"
DROP_TASK = "DELETE FROM tasks WHERE id = {p} AND state = {p}"

OLDEST = {
    table: "SELECT id FROM " + table + " ORDER BY id LIMIT {p}"
    for table in ("task_events", "task_audit")
}
DROP = {
    table: "DELETE FROM " + table + " WHERE id = {p} AND created_at < {now_plus}"
    for table in ("task_events", "task_audit")
}
