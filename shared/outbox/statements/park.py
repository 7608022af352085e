"""Statements of resources: what an execution holds, and what is parked there.

`resource_key` is set in `blocked` rows that wait for a resource, and nowhere else.
"""

from __future__ import annotations

#: The places that an execution holds or has reserved, before it uses the one it has just taken.
SET_SLOTS = (
    "UPDATE tasks {by_primary} SET slots = {p} WHERE id = {p} AND state = 'running' "
    "AND owner = {p} AND fence = {p} AND cancel_requested = 0 AND lease_until > {clock}"
)
#: What a rebuild enters: all that runs under a living lease and holds something.
HELD = (
    "SELECT id, slots FROM tasks {by_lease} WHERE state = 'running' AND lease_until > {now} "
    "AND slots IS NOT NULL"
)

#: Steps through the resources on which something is parked, one index entry each.
NEXT_RESOURCE = (
    "SELECT resource_key FROM tasks {by_resource} WHERE resource_key > {p} "
    "ORDER BY resource_key LIMIT 1"
)
#: Steps through the tenants of one resource.
FIRST_TENANT = (
    "SELECT tenant_id FROM tasks {by_resource} WHERE resource_key = {p} AND tenant_id >= {p} "
    "ORDER BY tenant_id LIMIT 1"
)
NEXT_TENANT = FIRST_TENANT.replace(">= {p}", "> {p}")
#: One tenant's rows in their order, with what tells whether their time has come, and long ago.
PARKED = (
    "SELECT id, queue, region, kind, tenant_id, priority, order_at, due_at <= {now}, "
    "due_at <= {now_plus} "
    "FROM tasks {by_resource} WHERE resource_key = {p} AND tenant_id = {p} "
    "ORDER BY order_at, id LIMIT {p}"
)

#: A row that somebody holds is being cancelled, or woken by another.
LOCK_PARKED = (
    "SELECT id FROM tasks {by_primary} WHERE id IN (%(ids)s) AND state = 'blocked' "
    "AND resource_key = {p} ORDER BY id {skip_locked}"
)
UNPARK = (
    "UPDATE tasks {by_primary} SET state = 'pending', resource_key = NULL, slots = {p}, "
    "dispatch_id = NULL, due_at = {clock} "
    "WHERE id IN (%(ids)s) AND state = 'blocked' AND resource_key = {p}"
)
#: How many of these have been parked there again.
STILL_PARKED = (
    "SELECT COUNT(*) FROM tasks {by_primary} WHERE id IN (%(ids)s) AND state = 'blocked' "
    "AND resource_key = {p}"
)
