"""What happens to runs and items when their tasks end without their handlers, or come back."""

from __future__ import annotations

from sqlalchemy.orm import Session

from shared.catalog.backups.items import close_item, lock_item_rows
from shared.catalog.backups.runs import end_run, lock_run
from shared.catalog.blobs import add_reference
from shared.catalog.context import Catalogue
from shared.catalog.models import (
    BackupItemState,
    BackupRun,
    BackupRunState,
    HolderKind,
)
from shared.catalog.payloads import BackUpItem, RunBackup
from shared.core.errors import ConflictError
from shared.outbox.kinds import EndedTask

_CANCELLED = ("cancelled", "superseded")


class RunHooks:
    """Hooks of `backup.run`."""

    def lock(self, session: Session, payload: RunBackup) -> None:
        """Lock the run."""
        lock_run(session, payload.run_id)

    def on_end(self, session: Session, task: EndedTask, outcome: str) -> None:
        """End a run that is still open; its pins are released by the scheduler."""
        run = lock_run(session, _run_id(task))
        if run is None or run.state != BackupRunState.OPEN or run.task_id != task.id:
            return
        is_cancelled = outcome in _CANCELLED
        state = BackupRunState.CANCELLED if is_cancelled else BackupRunState.FAILED
        end_run(run, state, code=task.error_code or outcome)
        session.flush()

    def on_retry(self, session: Session, task: EndedTask) -> None:
        """Refuse: its pins are gone, and a new run finds what this one has copied."""
        raise ConflictError(
            "a run that is over stays over: start another one, it goes on from what was copied",
            code="backup_over",
            run_id=_run_id(task),
        )


class ItemHooks:
    """Hooks of `backup.item`."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    def lock(self, session: Session, payload: BackUpItem) -> None:
        """Lock the item's blob and the item."""
        lock_item_rows(session, payload.item_id)

    def on_end(self, session: Session, task: EndedTask, outcome: str) -> None:
        """End an item that is still open, and let its pin go."""
        found = lock_item_rows(session, _item_id(task))
        if found is None:
            return
        item, blob = found
        if item.state != BackupItemState.OPEN or item.task_id != task.id:
            return
        run = session.get(BackupRun, item.run_id)
        if run is not None and run.state == BackupRunState.FOLLOWING:
            # The next run meets the content again.
            session.delete(item)
            session.flush()
            return
        is_cancelled = outcome in _CANCELLED
        state = BackupItemState.CANCELLED if is_cancelled else BackupItemState.FAILED
        close_item(session, self._catalogue, item, blob, state, code=task.error_code or outcome)

    def on_retry(self, session: Session, task: EndedTask) -> None:
        """Pin the content again, if its run still waits and the content is still there."""
        found = lock_item_rows(session, _item_id(task))
        run = None if found is None else session.get(BackupRun, found[0].run_id)
        if found is None or run is None or run.state != BackupRunState.OPEN:
            raise ConflictError("the run is over", code="backup_over")
        item, blob = found
        if item.state not in (BackupItemState.FAILED, BackupItemState.CANCELLED) or blob is None:
            raise ConflictError(f"the item is {item.state}", code="backup_item_over")
        add_reference(session, blob, HolderKind.BACKUP, run.id)
        item.state, item.error_code, item.ended_at = BackupItemState.OPEN, None, None
        item.task_id = task.id
        session.flush()


def _run_id(task: EndedTask) -> int:
    if not isinstance(task.payload, RunBackup):
        raise TypeError(f"the payload of {task.kind} names no run")
    return task.payload.run_id


def _item_id(task: EndedTask) -> int:
    if not isinstance(task.payload, BackUpItem):
        raise TypeError(f"the payload of {task.kind} names no item")
    return task.payload.item_id
