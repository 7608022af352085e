"""Statements that end a task, send it back to wait, or bring it back: rows are locked by id first.

Each UPDATE names the state that it expects, and from `running` the owner and the fence as well.
"""

from __future__ import annotations

#: What `rows.TaskRow` holds, in its order.
COLUMNS = (
    "id, queue, region, kind, tenant_id, state, priority, order_at, payload, attempt, "
    "max_attempts, recoveries, crashes, dispatch_id, owner, fence, lease_until > {clock}, "
    "cancel_requested, error_code, error_detail, created_at, started_at, finished_at, {clock}, "
    "slots"
)
READ = "SELECT " + COLUMNS + " FROM tasks WHERE id IN (%(ids)s) ORDER BY id"
#: Waits for rows that another holds: what they say after the wait is what counts.
LOCK = (
    "SELECT " + COLUMNS + " FROM tasks {by_primary} WHERE id IN (%(ids)s) ORDER BY id {for_update}"
)

#: With a result, alone: the end of `complete()`. Owner and fence stay, so that an unconfirmed
#: COMMIT can be looked up.
COMPLETE = (
    "UPDATE tasks {by_primary} SET state = 'completed', attempt = attempt + 1, "
    "finished_at = {clock}, lease_until = NULL, error_code = NULL, error_detail = NULL, "
    "slots = NULL, result = {p} WHERE id = {p} AND state = 'running' AND owner = {p} "
    "AND fence = {p} AND cancel_requested = 0"
)
END_RUNNING = (
    "UPDATE tasks {by_primary} SET state = {p}, attempt = attempt + {p}, finished_at = {clock}, "
    "lease_until = NULL, slots = NULL, error_code = {p}, error_detail = {p}, "
    "recoveries = recoveries + {p}, crashes = crashes + {p} "
    "WHERE id = {p} AND state = 'running' AND owner = {p} AND fence = {p}"
)
END_WAITING = (
    "UPDATE tasks {by_primary} SET state = {p}, finished_at = {clock}, lease_until = NULL, "
    "resource_key = NULL, slots = NULL, error_code = {p}, error_detail = {p} "
    "WHERE id = {p} AND state = {p} AND fence = {p}"
)
#: A retry counts an attempt, a snooze does not; a parked task has a resource. `order_at` stays:
#: fairness does not forget.
RESCHEDULE = (
    "UPDATE tasks {by_primary} SET state = {p}, attempt = attempt + {p}, owner = NULL, "
    "lease_until = NULL, dispatch_id = NULL, slots = NULL, due_at = {clock_plus}, "
    "error_code = {p}, error_detail = {p}, resource_key = {p} "
    "WHERE id = {p} AND state = 'running' AND owner = {p} AND fence = {p} "
    "AND cancel_requested = 0"
)
#: `slots` stays: a place that is reserved for the task is still its own.
GIVE_BACK = (
    "UPDATE tasks {by_primary} SET state = 'pending', owner = NULL, lease_until = NULL, "
    "dispatch_id = NULL, due_at = {greatest}(due_at, {clock}) "
    "WHERE id IN (%(ids)s) AND state = 'running' AND owner IN (%(owners)s) "
    "AND cancel_requested = 0"
)
REQUEST_CANCEL = (
    "UPDATE tasks {by_primary} SET cancel_requested = 1, error_code = {p}, error_detail = {p} "
    "WHERE id = {p} AND state = 'running' AND owner = {p} AND fence = {p}"
)

#: A new life of the same row. Fence and checkpoint stay; an old message names an old dispatch.
REVIVE = (
    "UPDATE tasks {by_primary} SET state = 'pending', dispatch_id = {p}, attempt = 0, "
    "recoveries = 0, crashes = 0, progress = 0, dispatch_failures = 0, cancel_requested = 0, "
    "owner = NULL, lease_until = NULL, error_code = NULL, error_detail = NULL, result = NULL, "
    "started_at = NULL, finished_at = NULL, resource_key = NULL, slots = NULL, "
    "due_at = {clock}, order_at = {clock} "
    "WHERE id = {p} AND state = {p} AND fence = {p}"
)
#: What a scheduled task waited for has come, or a user does not want to wait.
MAKE_DUE = (
    "UPDATE tasks {by_primary} SET state = 'pending', dispatch_id = NULL, due_at = {clock} "
    "WHERE id = {p} AND state = 'scheduled' AND fence = {p}"
)

INSERT_ATTEMPT = (
    "INSERT INTO task_attempts (task_id, attempt, fence, owner, outcome, error_code, "
    "error_detail, started_at, ended_at) VALUES ({p}, {p}, {p}, {p}, {p}, {p}, {p}, {p}, {p})"
)
FIND_ATTEMPT = (
    "SELECT 1 FROM task_attempts WHERE task_id = {p} AND fence = {p} AND attempt = {p} "
    "AND outcome = {p} LIMIT 1"
)
INSERT_EVENTS = "INSERT INTO task_events (task_id, type, data, created_at) VALUES "
EVENT = "({p}, {p}, {p}, {clock})"
#: For rows that this transaction has just moved under these dispatch ids, and so holds locked.
INSERT_MOVES = (
    "INSERT INTO task_events (task_id, type, data, created_at) "
    "SELECT id, {p}, {p}, {clock} FROM tasks WHERE id IN (%(ids)s) AND state = {p} "
    "AND dispatch_id IN (%(dispatches)s) AND kind IN (%(kinds)s) ORDER BY id"
)
INSERT_AUDIT = (
    "INSERT INTO task_audit (task_id, tenant_id, action, actor, reason, state_before, "
    "state_after, created_at) VALUES ({p}, {p}, {p}, {p}, {p}, {p}, {p}, {clock})"
)
