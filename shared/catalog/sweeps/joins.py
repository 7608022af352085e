"""Files in staging that uploads in parts are joined into: named by their tasks' checkpoints."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import SessionState, UploadSession, by_index
from shared.outbox.schema import tasks
from shared.outbox.states import ACTIVE
from shared.storage.staging import is_join_key


def joins_under_way(session: Session, keys: Iterable[str]) -> set[str]:
    """Return those of the keys that a task which has not ended goes on with.

    A version names the file from the commit on that ends the task.
    """
    wanted = {key for key in keys if is_join_key(key)}
    if not wanted:
        return set()
    statement = (
        sa.select(tasks.c.checkpoint)
        .select_from(UploadSession)
        .join(tasks, tasks.c.id == UploadSession.task_id)
        .where(UploadSession.state == SessionState.COMPLETING, tasks.c.state.in_(sorted(ACTIVE)))
    )
    found = session.scalars(by_index(statement, UploadSession, "ix_upload_sessions_expiry"))
    return wanted & {checkpoint.get("key") for checkpoint in found if checkpoint}
