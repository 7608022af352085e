"""What happens to a session when its assembly ends without a version, or is tried again by hand."""

from __future__ import annotations

from sqlalchemy.orm import Session

from shared.catalog.models import SessionState, utc_clock, utc_now
from shared.catalog.payloads import AssembleUpload
from shared.catalog.uploading.parts import parts_of
from shared.catalog.uploading.sessions import lock_session_by_id
from shared.core.errors import ConflictError
from shared.outbox.kinds import EndedTask

#: Seconds for which the parts of a failed upload wait for a retry by hand.
FAILED_SECONDS = 7 * 86_400.0
#: Failures that the same parts would meet again: nothing is kept for them.
FINAL_CODES = frozenset(
    {
        "sha256_mismatch",
        "size_mismatch",
        "bucket_not_found",
        "too_large",
        "expiry_invalid",
        "superseded",
    }
)


class AssemblyHooks:
    """Hooks of `upload.assemble`: a session never waits for a task that has ended."""

    def lock(self, session: Session, payload: AssembleUpload) -> None:
        """Lock the session."""
        lock_session_by_id(session, payload.session_id)

    def on_end(self, session: Session, task: EndedTask, outcome: str) -> None:
        """Set a session that still waits for this task to failed, with the reason as its result."""
        found = lock_session_by_id(session, _session_id(task))
        if found is None:
            return
        row = found.row
        if row.state != SessionState.COMPLETING or row.task_id != task.id:
            return
        code = task.error_code or outcome
        row.state = SessionState.FAILED
        row.result = {"code": code, "detail": (task.error_detail or outcome)[:512]}
        row.ended_at = utc_clock()
        row.expires_at = utc_now(0.0 if code in FINAL_CODES else FAILED_SECONDS)
        session.flush()

    def on_retry(self, session: Session, task: EndedTask) -> None:
        """Freeze a failed session again. Raises ConflictError when it is gone, or its parts are."""
        found = lock_session_by_id(session, _session_id(task))
        if found is None or found.row.state not in (SessionState.FAILED, SessionState.COMPLETING):
            raise ConflictError("the upload is over", code="upload_over")
        row = found.row
        # Once their time is over the cleanup may take them at any moment.
        is_over = row.expires_at is not None and row.expires_at <= found.now
        is_whole = bool(row.part_count) and len(parts_of(session, row.id)) == row.part_count
        if is_over or not is_whole:
            raise ConflictError("the parts are gone", code="bytes_gone")
        row.state = SessionState.COMPLETING
        row.task_id = task.id
        row.result = None
        row.ended_at = None
        row.expires_at = None
        session.flush()


def _session_id(task: EndedTask) -> int:
    if not isinstance(task.payload, AssembleUpload):
        raise TypeError(f"the payload of {task.kind} names no upload session")
    return task.payload.session_id
