"""Statements of compensation: pages of rows that fell between two steps, and rows of processes.

A page is read through an index whose leading columns are compared for equality and whose next one
is the order; `{now}` is constant in a statement, so that it can bound an index.
"""

from __future__ import annotations

#: Every move into `scheduled` sets `due_at` to now or later, so a bound that trails loses nothing.
DUE = (
    "SELECT id, kind, tenant_id, priority, order_at, due_at FROM tasks {by_due} "
    "WHERE queue = {p} AND region = {p} AND state = 'scheduled' AND due_at >= {p} "
    "AND due_at <= {now} ORDER BY due_at, id LIMIT {p} {skip_locked}"
)
MAKE_PENDING = (
    "UPDATE tasks {by_primary} SET state = 'pending', dispatch_id = NULL, lease_until = NULL, "
    "due_at = {now} WHERE id IN (%(ids)s) AND state = 'scheduled'"
)

_DISPATCH = (
    "SELECT id, lease_until, dispatch_id, kind, queue, region, tenant_id, priority, order_at "
    "FROM tasks {by_lease} "
)
DISPATCH_EXPIRED = (
    _DISPATCH + "WHERE state = 'dispatching' AND lease_until >= {p} AND lease_until < {now} "
    "ORDER BY lease_until, id LIMIT {p} {skip_locked}"
)
#: Read without locks: a worker that is about to claim these rows must not be made to wait.
DISPATCHED = (
    _DISPATCH + "WHERE state = 'dispatched' AND lease_until >= {p} AND lease_until < {now} "
    "ORDER BY lease_until, id LIMIT {p}"
)
#: One mark gives a whole page the same moment: the rest of a tie is read by id.
DISPATCHED_TIE = (
    _DISPATCH + "WHERE state = 'dispatched' AND lease_until = {p} AND id > {p} "
    "ORDER BY id LIMIT {p}"
)
#: Those of a page that are still in their dispatch, and that nobody else holds.
LOCK_IN_DISPATCH = (
    "SELECT id FROM tasks {by_primary} WHERE id IN (%(ids)s) AND state = {p} "
    "AND dispatch_id IN (%(dispatches)s) ORDER BY id {skip_locked}"
)
TAKE_BACK = (
    "UPDATE tasks {by_primary} SET state = 'pending', dispatch_id = NULL, lease_until = NULL, "
    "due_at = {now} WHERE id IN (%(ids)s) AND state = {p} AND dispatch_id IN (%(dispatches)s)"
)

LEASE_EXPIRED = (
    "SELECT id, lease_until FROM tasks {by_lease} WHERE state = 'running' AND lease_until >= {p} "
    "AND lease_until < {now} ORDER BY lease_until, id LIMIT {p}"
)
LEASE_EXPIRED_TIE = (
    "SELECT id, lease_until FROM tasks {by_lease} WHERE state = 'running' AND lease_until = {p} "
    "AND id > {p} ORDER BY id LIMIT {p}"
)
LOCK_EXPIRED = (
    "SELECT id FROM tasks {by_primary} WHERE id IN (%(ids)s) AND state = 'running' "
    "AND lease_until < {clock} ORDER BY id {skip_locked}"
)
RECOVER = (
    "UPDATE tasks {by_primary} SET state = 'scheduled', owner = NULL, lease_until = NULL, "
    "dispatch_id = NULL, slots = NULL, recoveries = recoveries + 1, crashes = crashes + 1, "
    "due_at = {clock_plus} WHERE id = {p} AND state = 'running' AND owner = {p} AND fence = {p} "
    "AND cancel_requested = 0 AND lease_until < {clock}"
)

UPDATE_NODE = (
    "UPDATE nodes SET region = {p}, role = {p}, queues = {p}, threads = {p}, threads_busy = {p}, "
    "mean_seconds = {p}, version = {p}, last_seen = {now} WHERE node = {p}"
)
INSERT_NODE = (
    "{insert_ignore} INTO nodes (region, role, queues, threads, threads_busy, mean_seconds, "
    "version, node, started_at, last_seen) VALUES ({p}, {p}, {p}, {p}, {p}, {p}, {p}, {p}, "
    "{now}, {now})"
)
LIVE_NODES = (
    "SELECT node, region, role, queues, threads, threads_busy, mean_seconds FROM nodes "
    "WHERE last_seen >= {now_plus}"
)
DROP_NODE = "DELETE FROM nodes WHERE node = {p}"
OLD_NODES = "SELECT node FROM nodes WHERE last_seen < {now_plus} ORDER BY last_seen, node LIMIT {p}"
DROP_OLD_NODE = DROP_NODE + " AND last_seen < {now_plus}"
