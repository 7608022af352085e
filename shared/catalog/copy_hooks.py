"""What happens to a copy over channels when its task ends without its handler, or is run again."""

from __future__ import annotations

from sqlalchemy.orm import Session

from shared.catalog.blobs import add_reference, drop_reference
from shared.catalog.context import Catalogue
from shared.catalog.locking import lock_blobs
from shared.catalog.many_keys import lock_keys
from shared.catalog.models import Copy, CopyState, HolderKind, ObjectRow, utc_clock
from shared.catalog.payloads import CopyObject
from shared.catalog.supersede import is_last_word
from shared.core.errors import ConflictError
from shared.outbox.kinds import EndedTask


class CopyHooks:
    """Hooks of `replica.object`: a copy that ended needs the content no longer."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def lock(self, session: Session, payload: CopyObject) -> None:
        """Lock the target's key, the content and the copy."""
        copy = session.get(Copy, payload.copy_id)
        if copy is None:
            return
        lock_keys(session, [copy.target_object_id], blob_id=copy.blob_id)
        session.get(Copy, payload.copy_id, with_for_update=True, populate_existing=True)

    def on_end(self, session: Session, task: EndedTask, outcome: str) -> None:
        """Note that it stopped, and let go of the content."""
        copy = _find(session, task)
        if copy is None or copy.state != CopyState.PENDING:
            return
        is_failed = outcome == CopyState.FAILED
        copy.state = CopyState.FAILED if is_failed else CopyState.CANCELLED
        copy.ended_at = utc_clock()
        copy.error_code = task.error_code or outcome
        session.flush()
        blob = lock_blobs(session, [copy.blob_id]).get(copy.blob_id)
        if blob is not None:
            drop_reference(session, self._catalogue, blob, HolderKind.COPY, copy.id)

    def on_retry(self, session: Session, task: EndedTask) -> None:
        """Need the content again. Raises ConflictError when it is gone, or the target was written.

        A copy that is done is not made again.
        """
        copy = _find(session, task)
        if copy is None or copy.state == CopyState.COMPLETED:
            raise ConflictError("the copy is over", code="copy_over")
        target = session.get(ObjectRow, copy.target_object_id)
        blob = lock_blobs(session, [copy.blob_id]).get(copy.blob_id)
        if target is None or not is_last_word(
            session, target, copy.generation, task_id=copy.task_id
        ):
            raise ConflictError("a newer write has won", code="superseded", copy_id=copy.id)
        if blob is None:
            raise ConflictError("the content is gone", code="bytes_gone", copy_id=copy.id)
        if copy.state != CopyState.PENDING:
            add_reference(session, blob, HolderKind.COPY, copy.id)
        copy.state = CopyState.PENDING
        copy.ended_at = None
        copy.error_code = None
        session.flush()


def _find(session: Session, task: EndedTask) -> Copy | None:
    if not isinstance(task.payload, CopyObject):
        raise TypeError(f"the payload of {task.kind} names no copy")
    copy = session.get(Copy, task.payload.copy_id)
    return copy if copy is not None and copy.task_id == task.id else None
