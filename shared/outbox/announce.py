"""After a commit that made rows pending: let the filler see them, also below its watermark."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from shared.outbox.context import OutboxContext
from shared.outbox.lanes import lower_lanes
from shared.outbox.rows import TaskRow

_log = structlog.get_logger("outbox.announce")


def announce(context: OutboxContext, made_pending: Sequence[TaskRow]) -> None:
    """Lower the lanes of these rows and wake the filler; never raises.

    Call it after the commit, never inside the transaction. What is lost here costs latency: the
    filler looks at everything once a minute.
    """
    if not made_pending:
        return
    lanes = [
        ((row.queue, row.region, row.tenant_id, row.priority), row.order_at) for row in made_pending
    ]
    try:
        lower_lanes(context.db, lanes)
        context.scripts.ring_filler()
    except Exception as error:
        _log.info("pending_not_announced", count=len(lanes), error=str(error))
