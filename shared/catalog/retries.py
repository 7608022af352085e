"""Whether a task that has ended may have a new life in this deployment."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.context import Catalogue
from shared.outbox.schema import tasks


def need_service(
    session: Session, catalogue: Catalogue, task_id: int, *, tenant_id: str | None = None
) -> None:
    """Raise SwitchedOffError for a task, of this tenant if one is given, that would wait for ever.

    One that is not there passes: whoever revives it says so.
    """
    statement = sa.select(tasks.c.queue).where(tasks.c.id == task_id)
    if tenant_id is not None:
        statement = statement.where(tasks.c.tenant_id == tenant_id)
    queue = session.scalar(statement)
    if queue is not None:
        catalogue.need(queue)
