"""A restore that an operator asked for: keys from a manifest, or a search for lost content."""

from __future__ import annotations

from sqlalchemy.orm import Session

from services.restore.deps import Deps
from services.restore.fetching import StagingTrouble
from services.restore.keys import KeyRestore
from services.restore.search import search
from shared.catalog import fenced
from shared.catalog.models import Restore, RestoreState
from shared.catalog.payloads import RunRestore
from shared.catalog.restores.runs import end_restore, lock_restore
from shared.core.errors import SupersededError
from shared.core.failpoints import failpoint
from shared.core.outcomes import Fail, Snooze
from shared.outbox import Execution
from shared.outbox.completion import Completion
from shared.storage.errors import BreakerOpen

#: Seconds for which a restore rests whose bytes staging does not take.
STAGING_SECONDS = 30.0


def run_restore(execution: Execution, payload: RunRestore, deps: Deps) -> Fail | Snooze | None:
    """Carry a restore on from its cursor to its end, and complete the task with it.

    Every key is one transaction that also moves the cursor. Waits uncounted for a target that is
    left alone, and for room in staging.
    """
    failpoint("restore.run_claimed")
    restore = deps.db.run_session(
        lambda session: session.get(Restore, payload.restore_id), read_only=True
    )
    if restore is None:
        raise SupersededError("the restore is gone", restore_id=payload.restore_id)
    if restore.state == RestoreState.COMPLETE:
        return None
    if restore.state != RestoreState.OPEN:
        raise SupersededError(f"the restore is {restore.state}", restore_id=restore.id)
    try:
        if restore.mode == "content":
            search(execution, restore, deps, is_deep=payload.deep)
        else:
            failed = KeyRestore(execution, restore, deps).run()
            if failed is not None:
                return failed
    except BreakerOpen as error:
        return Snooze(error.retry_after_seconds + 0.1, reason=str(error))
    except StagingTrouble as error:
        return Snooze(STAGING_SECONDS, reason=str(error))
    failpoint("restore.before_run_commit")
    _complete(execution, restore.id, deps)
    failpoint("restore.after_run_commit")
    return None


def _complete(execution: Execution, restore_id: int, deps: Deps) -> None:
    def write(tx: Completion) -> None:
        restore = _open(tx.session, restore_id)
        end_restore(restore, RestoreState.COMPLETE)
        tx.session.flush()
        tx.result = {"restore_id": restore_id, **(restore.counts or {})}

    fenced.complete(
        execution, deps.db, lock=lambda session: lock_restore(session, restore_id), body=write
    )


def _open(session: Session, restore_id: int) -> Restore:
    restore = session.get(Restore, restore_id)
    if restore is None or restore.state != RestoreState.OPEN:
        raise SupersededError("the restore is over", restore_id=restore_id)
    return restore
