"""What happens to losses and restores when their tasks end without their handlers, or come back."""

from __future__ import annotations

from sqlalchemy.orm import Session

from shared.catalog.backups.runs import lock_run
from shared.catalog.models import BackupRun, BackupRunState, Loss, LossState, RestoreState
from shared.catalog.payloads import RestoreBlob, RunRestore
from shared.catalog.restores.losses import end_loss, lock_blob_and_loss, reopen
from shared.catalog.restores.runs import end_restore, lock_restore
from shared.core.errors import ConflictError
from shared.outbox.kinds import EndedTask

_SUPERSEDED = "superseded"
_UNRECOVERABLE = "unrecoverable"
_CANCELLED = ("cancelled", _SUPERSEDED)


class LossHooks:
    """Hooks of `restore.blob`: a loss is listed until it is restored or nothing needs it."""

    def lock(self, session: Session, payload: RestoreBlob) -> None:
        """Lock the blob and the loss."""
        lock_blob_and_loss(session, payload.loss_id)

    def on_end(self, session: Session, task: EndedTask, outcome: str) -> None:
        """End a loss that is still open as its task has ended."""
        loss = _loss(session, task)
        if loss is None or loss.state != LossState.OPEN or loss.task_id != task.id:
            return
        if task.error_code == _SUPERSEDED:
            end_loss(loss, LossState.SUPERSEDED)
        elif task.error_code == _UNRECOVERABLE:
            end_loss(loss, LossState.UNRECOVERABLE, code=_UNRECOVERABLE)
        else:
            end_loss(loss, LossState.FAILED, code=task.error_code or outcome)
        session.flush()

    def on_retry(self, session: Session, task: EndedTask) -> None:
        """Open a loss again that could not be restored."""
        loss = _loss(session, task)
        if loss is None or loss.task_id != task.id:
            raise ConflictError("another task looks after the loss", code="loss_taken")
        if loss.state not in (LossState.UNRECOVERABLE, LossState.FAILED):
            raise ConflictError(f"the loss is {loss.state}", code="loss_over")
        reopen(session, loss)
        loss.task_id = task.id
        session.flush()


class RestoreHooks:
    """Hooks of `restore.run`."""

    def lock(self, session: Session, payload: RunRestore) -> None:
        """Lock the restore, and the backup that it reads."""
        restore = lock_restore(session, payload.restore_id)
        if restore is not None and restore.run_id is not None:
            lock_run(session, restore.run_id)

    def on_end(self, session: Session, task: EndedTask, outcome: str) -> None:
        """End a restore that is still open; what it has restored stays."""
        restore = lock_restore(session, _restore_id(task))
        if restore is None or restore.state != RestoreState.OPEN or restore.task_id != task.id:
            return
        state = RestoreState.CANCELLED if outcome in _CANCELLED else RestoreState.FAILED
        end_restore(restore, state, code=task.error_code or outcome)
        session.flush()

    def on_retry(self, session: Session, task: EndedTask) -> None:
        """Let a restore go on from where it stopped, in the backup that it was reading."""
        restore = lock_restore(session, _restore_id(task))
        if restore is None or restore.state not in (RestoreState.FAILED, RestoreState.CANCELLED):
            raise ConflictError("the restore is over", code="restore_over")
        if restore.run_id is not None:
            # While the restore was over, nothing kept its backup; another is another point in time.
            run = session.get(BackupRun, restore.run_id)
            if run is None or run.state != BackupRunState.COMPLETE:
                raise ConflictError(
                    "the backup that it was reading is gone",
                    code="backup_gone",
                    run_id=restore.run_id,
                )
        restore.state, restore.error_code, restore.ended_at = RestoreState.OPEN, None, None
        restore.task_id = task.id
        session.flush()


def _loss(session: Session, task: EndedTask) -> Loss | None:
    if not isinstance(task.payload, RestoreBlob):
        raise TypeError(f"the payload of {task.kind} names no loss")
    return lock_blob_and_loss(session, task.payload.loss_id)[1]


def _restore_id(task: EndedTask) -> int:
    if not isinstance(task.payload, RunRestore):
        raise TypeError(f"the payload of {task.kind} names no restore")
    return task.payload.restore_id
