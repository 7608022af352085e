"""Renewing the places that executions hold, together with their leases."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from shared.core.errors import BloxError, SlotLost
from shared.outbox.context import OutboxContext
from shared.outbox.db import Line
from shared.outbox.execution import Execution
from shared.outbox.ports import RESERVED
from shared.outbox.rebuilding import rebuild

_log = structlog.get_logger("outbox.heartbeat")


def renew_slots(
    context: OutboxContext, executions: Sequence[Execution], *, line: Line
) -> set[Execution]:
    """Renew the places of these executions; returns those of which nothing could be known.

    A place that is lost stops its execution, whose task goes on elsewhere. Without Redis or without
    an epoch nothing is known to be lost: it is asked again soon, as long as the lease lives.
    """
    companion = context.places
    held = [
        (execution, (name, token))
        for execution in executions
        for name, token in execution.slots.items()
        if not token.startswith(RESERVED)
    ]
    if companion is None or not held:
        return set()
    try:
        pairs = [pair for _, pair in held]
        lost = companion.renew(pairs)
        if lost is None and rebuild(context, line=line):
            lost = companion.renew(pairs)
    except BloxError as error:
        _log.warning("places_not_renewed", count=len(held), error=str(error))
        lost = None
    if lost is None:
        return {execution for execution, _ in held}
    for execution, pair in held:
        # One that has just been given back is no loss.
        if pair in lost and execution.slots.get(pair[0]) == pair[1]:
            _log.warning("place_lost", task_id=execution.task.id, resource=pair[0])
            execution.stop(SlotLost("the place on the resource was lost", resource=pair[0]))
    return set()
