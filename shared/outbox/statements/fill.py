"""Statements of the filler: lanes, searching claims of pending rows, and how full the window is.

A claim is an equality on the first five columns of its index, then a bound and the order of the
rest: it costs the same with ten thousand and with ten million rows.
"""

from __future__ import annotations

#: Rows of one lane in their order. Rows locked by another are somebody else's business. Times come
#: as text: a driver takes longer to parse two for each row than for all the rest.
CLAIM = (
    "SELECT id, kind, CAST(order_at AS CHAR), CAST(due_at AS CHAR) FROM tasks {by_claim} "
    "WHERE queue = {p} AND region = {p} AND state = 'pending' AND tenant_id = {p} "
    "AND priority = {p} AND order_at >= {p} "
    "ORDER BY order_at, id LIMIT {p} {skip_locked}"
)
TAKE = (
    "UPDATE tasks {by_primary} SET state = 'dispatching', dispatch_id = {dispatch_id}, "
    "lease_until = {now_plus} WHERE id IN (%(ids)s) AND state = 'pending'"
)
MARK_DISPATCHED = (
    "UPDATE tasks {by_primary} SET state = 'dispatched', lease_until = {now_plus}, "
    "dispatch_failures = 0 "
    "WHERE id IN (%(ids)s) AND state = 'dispatching' AND dispatch_id = {dispatch_id}"
)
#: Rows of the page that no worker has taken yet.
LOCK_DISPATCHING = (
    "SELECT id FROM tasks {by_primary} WHERE id IN (%(ids)s) AND state = 'dispatching' "
    "AND dispatch_id = {dispatch_id} ORDER BY id {for_update}"
)
#: Redis refused the page, or was never asked.
MARK_REFUSED = (
    "UPDATE tasks {by_primary} SET state = 'scheduled', dispatch_id = NULL, lease_until = NULL, "
    "dispatch_failures = dispatch_failures + 1, due_at = {now_plus} "
    "WHERE id IN (%(ids)s) AND state = 'dispatching' AND dispatch_id = {dispatch_id}"
)

#: One column of a look into many lanes at once; reads nothing but the index.
HAS_PENDING = (
    "EXISTS (SELECT 1 FROM tasks {by_claim} WHERE queue = {p} AND region = {p} "
    "AND state = 'pending' AND tenant_id = {p} AND priority = {p} AND order_at >= {p})"
)

#: A pending row that has waited for a while although no lane shows one: its announcement was lost.
OVERLOOKED = (
    "SELECT 1 FROM tasks {by_due} WHERE queue = {p} AND region = {p} AND state = 'pending' "
    "AND due_at >= {now_plus} AND due_at < {now_plus} ORDER BY due_at LIMIT 1"
)

#: Rows in the window by state. Each of them became due after the bound, which the reader moves.
COUNT_WINDOW = (
    "SELECT COUNT(*), MIN(due_at), {now} FROM tasks {by_due} WHERE queue = {p} AND region = {p} "
    "AND state = {p} AND due_at >= {p}"
)

LANES = (
    "SELECT tenant_id, priority, weight, watermark, version, {now} FROM lanes "
    "WHERE queue = {p} AND region = {p} ORDER BY tenant_id, priority"
)
#: A lane that was touched lately cannot be dropped while this process remembers it.
IS_LANE_FRESH = (
    "SELECT 1 FROM lanes WHERE queue = {p} AND region = {p} AND tenant_id = {p} AND priority = {p} "
    "AND touched_at >= {now_plus}"
)
TOUCH_LANE = (
    "UPDATE lanes SET touched_at = {now} "
    "WHERE queue = {p} AND region = {p} AND tenant_id = {p} AND priority = {p}"
)
INSERT_LANE = (
    "{insert_ignore} INTO lanes (queue, region, tenant_id, priority, weight, watermark, version, "
    "touched_at) VALUES ({p}, {p}, {p}, {p}, 1, {p}, 0, {now})"
)
#: The version tells a filler that claimed meanwhile not to move the watermark past these rows.
LOWER_LANE = (
    "UPDATE lanes SET watermark = {least}(watermark, {p}), version = version + 1, "
    "touched_at = {now} WHERE queue = {p} AND region = {p} AND tenant_id = {p} AND priority = {p}"
)
LOWER_LANE_BY = (
    "UPDATE lanes SET watermark = {least}(watermark, {now_plus}), version = version + 1, "
    "touched_at = {now} WHERE queue = {p} AND region = {p} AND tenant_id = {p} AND priority = {p}"
)
MOVE_LANE = (
    "UPDATE lanes SET watermark = {p}, touched_at = {now} WHERE queue = {p} AND region = {p} "
    "AND tenant_id = {p} AND priority = {p} AND version = {p}"
)
LANES_IDLE = (
    "SELECT tenant_id, priority FROM lanes WHERE queue = {p} AND region = {p} "
    "AND touched_at < {now_plus} ORDER BY tenant_id, priority"
)
LOCK_IDLE_LANE = (
    "SELECT 1 FROM lanes WHERE queue = {p} AND region = {p} AND tenant_id = {p} AND priority = {p} "
    "AND touched_at < {now_plus} {skip_locked}"
)
DROP_LANE = (
    "DELETE FROM lanes WHERE queue = {p} AND region = {p} AND tenant_id = {p} AND priority = {p}"
)

#: Steps through the tenants and priorities of pending rows: one index entry each.
NEXT_TENANT = (
    "SELECT tenant_id, priority FROM tasks {by_claim} WHERE queue = {p} AND region = {p} "
    "AND state = 'pending' AND tenant_id > {p} ORDER BY tenant_id, priority LIMIT 1"
)
NEXT_PRIORITY = (
    "SELECT tenant_id, priority FROM tasks {by_claim} WHERE queue = {p} AND region = {p} "
    "AND state = 'pending' AND tenant_id = {p} AND priority > {p} ORDER BY priority LIMIT 1"
)
#: Steps through the queues and regions that have rows.
NEXT_QUEUE = (
    "SELECT queue, region FROM tasks {by_claim} WHERE queue > {p} ORDER BY queue, region LIMIT 1"
)
NEXT_REGION = (
    "SELECT queue, region FROM tasks {by_claim} WHERE queue = {p} AND region > {p} "
    "ORDER BY region LIMIT 1"
)
