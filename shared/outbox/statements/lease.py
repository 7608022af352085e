"""Statements of a running execution: its lease, its checkpoint, its progress events.

Leases are compared with `{clock}`, which is read after a lock was waited for.
"""

from __future__ import annotations

#: One locked row must not hold up the others: what is locked is renewed a second later.
LOCK_RUNNING = (
    "SELECT id, state, owner, fence, lease_until > {clock}, cancel_requested, error_code "
    "FROM tasks {by_primary} WHERE id IN (%(ids)s) ORDER BY id {skip_locked}"
)
#: The same without locks: what was cancelled or lost, for the bell and for rows locked by another.
LOOK_RUNNING = (
    "SELECT id, state, owner, fence, lease_until > {clock}, cancel_requested, error_code "
    "FROM tasks {by_primary} WHERE id IN (%(ids)s)"
)
#: Only rows locked just before, whose owner and fence were compared one by one.
RENEW = (
    "UPDATE tasks {by_primary} SET lease_until = {clock_plus} "
    "WHERE id IN (%(ids)s) AND state = 'running' AND owner IN (%(owners)s)"
)
#: `recoveries` stands before `progress`: MySQL sees the columns already set, SQLite the old ones.
SAVE_CHECKPOINT = (
    "UPDATE tasks {by_primary} SET checkpoint = {p}, "
    "recoveries = CASE WHEN progress < {p} THEN 0 ELSE recoveries END, "
    "progress = {greatest}(progress, {p}) WHERE id = {p} AND state = 'running' AND owner = {p} "
    "AND fence = {p} AND cancel_requested = 0 AND lease_until > {clock}"
)
#: The row lock keeps the ids of one task's events in the order of their commits.
LOCK_OWN = (
    "SELECT id FROM tasks {by_primary} WHERE id = {p} AND state = 'running' AND owner = {p} "
    "AND fence = {p} AND cancel_requested = 0 AND lease_until > {clock} {for_update}"
)
