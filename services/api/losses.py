"""What a read finds missing or damaged: recorded in a short transaction of its own.

A version that was replaced or deleted meanwhile has lost nothing, and is told apart there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import structlog
from sqlalchemy.orm import Session

from services.api.content import Damaged
from services.api.deps import Api
from shared.catalog.replicas.losses import report_loss
from shared.catalog.restores.losses import FoundBy
from shared.core.errors import BloxError

_log = structlog.get_logger()


async def report(api: Api, damaged: Sequence[Damaged]) -> None:
    """Record lost copies, each with the task that brings it back. Raises nothing of its own."""
    for one in damaged:
        try:
            await api.work.write(partial(_report, api=api, damaged=one))
        except BloxError as error:
            # The next read, or the audit, finds it again.
            _log.warning("loss_not_recorded", location_id=one.location_id, error=str(error))


def _report(session: Session, *, api: Api, damaged: Damaged) -> None:
    report_loss(
        session,
        api.deps.catalogue,
        damaged.location_id,
        found_by=FoundBy.READ,
        detail=damaged.code,
    )
