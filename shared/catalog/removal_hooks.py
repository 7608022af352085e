"""What happens to a removal by prefix when its task ends without its handler, or is run again."""

from __future__ import annotations

from sqlalchemy.orm import Session

from shared.catalog.models import Removal, RemovalState, utc_clock
from shared.catalog.payloads import DeletePrefix
from shared.core.errors import ConflictError
from shared.outbox.kinds import EndedTask


class RemovalHooks:
    """Hooks of `delete.prefix`: what was deleted stays deleted, the rest stays."""

    def lock(self, session: Session, payload: DeletePrefix) -> None:
        """Lock the removal."""
        session.get(Removal, payload.removal_id, with_for_update=True, populate_existing=True)

    def on_end(self, session: Session, task: EndedTask, outcome: str) -> None:
        """Note that it stopped, and why."""
        removal = _find(session, task)
        if removal is None or removal.state != RemovalState.RUNNING:
            return
        is_failed = outcome == RemovalState.FAILED
        removal.state = RemovalState.FAILED if is_failed else RemovalState.CANCELLED
        removal.ended_at = utc_clock()
        removal.error_code = task.error_code or outcome
        session.flush()

    def on_retry(self, session: Session, task: EndedTask) -> None:
        """Go on behind the last key that is done. Raises ConflictError when nothing is left."""
        removal = _find(session, task)
        if removal is None or removal.state == RemovalState.COMPLETED:
            raise ConflictError("the removal is over", code="removal_over")
        removal.state = RemovalState.RUNNING
        removal.ended_at = None
        removal.error_code = None
        session.flush()


def _find(session: Session, task: EndedTask) -> Removal | None:
    if not isinstance(task.payload, DeletePrefix):
        raise TypeError(f"the payload of {task.kind} names no removal")
    removal = session.get(Removal, task.payload.removal_id)
    return removal if removal is not None and removal.task_id == task.id else None
