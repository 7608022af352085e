"""Is a backup really there? A stretch of a target's contents is asked for, after each pruning.

What is found missing is never named again: the next run copies it anew.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

import sqlalchemy as sa
import structlog
from sqlalchemy.orm import Session

from services.backup.deps import Deps
from shared.catalog.backups.contents import note_damage
from shared.catalog.backups.retention import page_of_held
from shared.catalog.models import BackupContent, BackupContentState
from shared.outbox import Execution
from shared.storage.errors import ChannelError

#: Contents that one turn asks for; where it begins is drawn anew each time.
MOST_ASKED = 500

_log = structlog.get_logger("backup")


def audit(execution: Execution, target: str, deps: Deps) -> int:
    """Ask a target for some of what it should hold; returns how many are missing or short.

    A target that does not answer proves nothing and ends the turn.
    """
    found = deps.channels.find(target)
    if found is None:
        return 0
    tenant_id, missing = execution.task.tenant_id, 0
    some = deps.db.run_session(lambda session: stretch(session, target, tenant_id), read_only=True)
    for content in some:
        execution.check()
        try:
            seen = found[0].channel.head(content.key, deadline=execution.deadline)
        except ChannelError as error:
            _log.info("backup_target_not_audited", target=target, error=str(error))
            break
        if seen is None or seen.size != content.size_bytes:
            detail = "missing" if seen is None else f"{seen.size} bytes"
            note = partial(note_damage, content_id=content.id, detail=detail)
            if deps.db.run_session(note):
                missing += 1
                _log.error("backup_damaged", content_id=content.id, target=target, code=detail)
    return missing


def stretch(session: Session, target: str, tenant_id: str) -> Sequence[BackupContent]:
    """Return the contents behind a point that is drawn, from the first on when none is there."""
    # Of all targets: the end of the primary key is at hand, that of one target is not.
    newest = session.scalar(sa.select(sa.func.max(BackupContent.id)))
    begins = (random.randrange(newest) if newest else 0), 0
    for after in begins:
        ids = page_of_held(session, target, tenant_id, after, limit=MOST_ASKED)
        if ids:
            rows = session.scalars(
                sa.select(BackupContent).where(
                    BackupContent.id.in_(ids), BackupContent.state == BackupContentState.STORED
                )
            )
            return rows.all()
    return ()
