"""Statements on the regions of queues: who has consumed them, and moving what waits elsewhere."""

from __future__ import annotations

UPDATE_CONSUMED = "UPDATE consumed SET last_seen = {now} WHERE queue = {p} AND region = {p}"
INSERT_CONSUMED = (
    "{insert_ignore} INTO consumed (queue, region, last_seen) VALUES ({p}, {p}, {now})"
)

#: Rows of one queue and region in one state, read past those that others hold.
WAITING = (
    "SELECT id, kind, tenant_id, priority, order_at, dispatch_id FROM tasks {by_claim} "
    "WHERE queue = {p} AND region = {p} AND state = {p} LIMIT {p} {skip_locked}"
)
MOVE = "UPDATE tasks {by_primary} SET region = {p} WHERE id IN (%(ids)s) AND state = {p}"
#: What is due already must not come to lie behind the bound of its new region's scan.
MOVE_SCHEDULED = (
    "UPDATE tasks {by_primary} SET region = {p}, due_at = {greatest}(due_at, {now}) "
    "WHERE id IN (%(ids)s) AND state = {p}"
)
#: What is on its way to a worker waits again: its message names a dispatch that is over.
MOVE_DISPATCHED = (
    "UPDATE tasks {by_primary} SET region = {p}, state = 'pending', dispatch_id = NULL, "
    "lease_until = NULL, due_at = {now} WHERE id IN (%(ids)s) AND state = {p}"
)
COUNT_STATE = "SELECT COUNT(*) FROM tasks WHERE queue = {p} AND region = {p} AND state = {p}"
