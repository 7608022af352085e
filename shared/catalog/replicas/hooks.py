"""What happens to a replica when its task ends without its handler, or comes back by hand."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.locking import lock_blobs
from shared.catalog.models import BlobState, Replica, ReplicaState, utc_clock
from shared.catalog.payloads import CopyReplica
from shared.catalog.replicas.planning import let_go
from shared.catalog.replicas.rules import wanted
from shared.core.errors import ConflictError
from shared.outbox.kinds import EndedTask

_SUPERSEDED = "superseded"
_DETAIL_CHARACTERS = 2000


class ReplicaHooks:
    """Hooks of `replica.copy` and `replica.repair`: what is completed stays so."""

    def lock(self, session: Session, payload: CopyReplica) -> None:
        """Lock the blob, then the replica."""
        lock_blobs(session, [payload.blob_id])
        _locked(session, payload.replica_id)

    def on_end(self, session: Session, task: EndedTask, outcome: str) -> None:
        """Set a replica that still waits for this task to failed, or gone when nobody wants it."""
        row = _locked(session, _payload(task).replica_id)
        if row is None or row.state != ReplicaState.PENDING or row.task_id != task.id:
            return
        if task.error_code == _SUPERSEDED:
            # Why, the next look of the job finds out anew: the blob may live again by then.
            let_go(row, _SUPERSEDED)
        else:
            row.state = ReplicaState.FAILED
            row.error_code = task.error_code or outcome
            row.error_detail = (task.error_detail or "")[:_DETAIL_CHARACTERS] or None
            row.updated_at = utc_clock()
        row.tries += task.attempt
        session.flush()

    def on_retry(self, session: Session, task: EndedTask) -> None:
        """Let a failed replica wait again. Raises ConflictError when nobody asks for the copy."""
        payload = _payload(task)
        blob = lock_blobs(session, [payload.blob_id]).get(payload.blob_id)
        row = _locked(session, payload.replica_id)
        if row is None or row.state not in (ReplicaState.FAILED, ReplicaState.GONE):
            raise ConflictError("the replica is not failed", code="replica_over")
        if row.task_id != task.id:
            raise ConflictError("a newer task has the replica", code="superseded")
        is_wanted = wanted(session, payload.blob_id).allows(row.channel)
        if blob is None or blob.state != BlobState.LIVE or not is_wanted:
            raise ConflictError("nobody asks for the copy", code="replica_unwanted")
        row.state, row.reason = ReplicaState.PENDING, ""
        row.updated_at = utc_clock()
        session.flush()


def _locked(session: Session, replica_id: int) -> Replica | None:
    return session.scalars(
        sa.select(Replica)
        .where(Replica.id == replica_id)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one_or_none()


def _payload(task: EndedTask) -> CopyReplica:
    if not isinstance(task.payload, CopyReplica):
        raise TypeError(f"the payload of {task.kind} names no replica")
    return task.payload
