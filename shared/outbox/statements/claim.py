"""Statements of the claim: rows are read by id, locked in order, judged in the process."""

from __future__ import annotations

#: Without SKIP LOCKED: a row locked by the dispatcher's mark is about to be ours, not stale.
_ROWS = (
    "SELECT id, state, dispatch_id, owner, fence, queue, region, kind, tenant_id, payload, "
    "checkpoint, progress, attempt, max_attempts, recoveries, crashes, parent_id, trace_parent, "
    "created_at, {wait_micros}, slots FROM tasks {by_primary} WHERE id IN (%(ids)s) ORDER BY id "
)
SELECT = _ROWS + "{for_update}"
#: After a long wait: what is locked still is somebody's long transaction. Not stale, only left.
SELECT_FREE = _ROWS + "{skip_locked}"
TAKE = (
    "UPDATE tasks {by_primary} SET state = 'running', owner = {p}, fence = fence + 1, "
    "lease_until = {clock_plus}, started_at = {now} "
    "WHERE id IN (%(ids)s) AND state IN ('dispatching', 'dispatched')"
)
#: A row that this process does not want now: a limit is met, or a suspect is being isolated.
POSTPONE = (
    "UPDATE tasks {by_primary} SET state = 'scheduled', dispatch_id = NULL, lease_until = NULL, "
    "due_at = {now_plus} WHERE id = {p} AND state IN ('dispatching', 'dispatched') "
    "AND dispatch_id = {p}"
)
