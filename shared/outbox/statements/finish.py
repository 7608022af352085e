"""Statements of the finisher: what is done is locked together and completed together."""

from __future__ import annotations

#: Rows locked by another (a cancel, a renewal) are left to the next group.
SELECT_READY = (
    "SELECT id, owner, fence FROM tasks {by_primary} WHERE id IN (%(ids)s) AND state = 'running' "
    "AND cancel_requested = 0 AND lease_until > {clock} ORDER BY id {skip_locked}"
)
COMPLETE = (
    "UPDATE tasks {by_primary} SET state = 'completed', attempt = attempt + 1, "
    "finished_at = {now}, lease_until = NULL, error_code = NULL, error_detail = NULL, slots = NULL "
    "WHERE id IN (%(ids)s) AND state = 'running'"
)
SET_RESULT = "UPDATE tasks {by_primary} SET result = {p} WHERE id = {p} AND state = 'running'"
#: Why a row was not ready: read without locks, judged in the process.
LOOK = (
    "SELECT id, state, owner, fence, cancel_requested, lease_until > {clock} FROM tasks "
    "WHERE id IN (%(ids)s)"
)
