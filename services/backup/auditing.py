"""Whether a backup target still has what it should: asked for a stretch of it after each pruning
and before each run, and for all of it when something is missing.

What is missing is never named again: the next run copies it anew. A mark that was wrong is taken
back: what is damaged is read again from time to time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial

import sqlalchemy as sa
import structlog
from sqlalchemy.orm import Session

from services.backup.deps import Deps
from shared.catalog.backups.contents import READABLE
from shared.catalog.backups.damage import (
    damaged_contents,
    note_damage,
    note_right,
    note_still_damaged,
)
from shared.catalog.backups.retention import page_of_held
from shared.catalog.models import BackupContent
from shared.core.clock import monotonic
from shared.core.errors import ResourceBusy
from shared.outbox import Execution
from shared.storage.awake import awake
from shared.storage.errors import ChannelError, ChecksumMismatch, ObjectMissing
from shared.storage.registry import OpenChannel
from shared.storage.verify import verify

#: Contents that one turn asks for; where it begins is drawn anew each time.
MOST_ASKED = 500
#: Those that a run asks for before it begins: of a target that was emptied all are missing.
MOST_SAMPLED = 50
#: How long a look at all of a target may take.
MOST_SECONDS = 3600.0
#: Damaged contents that one turn reads again.
MOST_READ = 50

_log = structlog.get_logger("backup")


class _Silent(Exception):
    """The target does not answer, which proves nothing."""


def audit(execution: Execution, target: str, deps: Deps) -> int:
    """Ask a target for some of what it should hold; returns how many are missing or short.

    And read again what is damaged. A target that does not answer ends the turn.
    """
    found = deps.channels.find(target)
    if found is None:
        return 0
    try:
        with deps.slots.reading(execution, found[0]):
            _read_again(execution, found[0], deps)
            return _ask(execution, found[0], deps, _some(execution, target, deps, MOST_ASKED))
    except (_Silent, ResourceBusy) as error:
        _log.info("backup_target_not_audited", target=target, error=str(error))
        return 0


def audit_before_run(execution: Execution, target: str, deps: Deps) -> int:
    """Ask a target for a few of its contents, and for all when one is missing; returns how many.

    So that no run names what a target has lost that was emptied or replaced.
    """
    found = deps.channels.find(target)
    if found is None:
        return 0
    try:
        with deps.slots.reading(execution, found[0]):
            missing = _ask(execution, found[0], deps, _some(execution, target, deps, MOST_SAMPLED))
            if missing:
                _log.error("backup_target_suspected", target=target, missing=missing)
                missing += _ask(execution, found[0], deps, _all(execution, target, deps))
    except (_Silent, ResourceBusy) as error:
        _log.info("backup_target_not_audited", target=target, error=str(error))
        return 0
    return missing


def _ask(
    execution: Execution, opened: OpenChannel, deps: Deps, contents: Iterator[BackupContent]
) -> int:
    missing, until = 0, monotonic() + MOST_SECONDS
    for content in contents:
        execution.check()
        try:
            seen = awake(
                partial(opened.channel.head, content.key, deadline=execution.deadline),
                check=execution.check,
                deadline=execution.deadline,
            )
        except ChannelError as error:
            raise _Silent(str(error)) from error
        if seen is None or seen.size != content.size_bytes:
            detail = "missing" if seen is None else f"{seen.size} bytes"
            note = partial(note_damage, content_id=content.id, detail=detail)
            if deps.db.run_session(note):
                missing += 1
                _log.error("backup_damaged", content_id=content.id, target=opened.name, code=detail)
        if monotonic() > until:
            break
    return missing


def _read_again(execution: Execution, opened: OpenChannel, deps: Deps) -> None:
    """Prove what was marked as damaged once more: a bad read-back is not the last word."""
    some = deps.db.run_session(
        lambda session: damaged_contents(
            session, opened.name, execution.task.tenant_id, limit=MOST_READ
        ),
        read_only=True,
    )
    for content in some:
        execution.check()
        try:
            verify(
                opened,
                content.key,
                size=content.size_bytes,
                sha256=content.sha256,
                check=execution.check,
                deadline=execution.deadline,
            )
        except (ObjectMissing, ChecksumMismatch):
            deps.db.run_session(partial(note_still_damaged, content_id=content.id))
        except ChannelError as error:
            if error.code != "short_read":
                raise _Silent(str(error)) from error
            deps.db.run_session(partial(note_still_damaged, content_id=content.id))
        else:
            if deps.db.run_session(partial(note_right, content_id=content.id)):
                _log.warning("backup_content_right", content_id=content.id, target=opened.name)


def _some(execution: Execution, target: str, deps: Deps, limit: int) -> Iterator[BackupContent]:
    tenant_id = execution.task.tenant_id
    yield from deps.db.run_session(
        lambda session: stretch(session, target, tenant_id, limit=limit), read_only=True
    )


def _all(execution: Execution, target: str, deps: Deps) -> Iterator[BackupContent]:
    tenant_id, after = execution.task.tenant_id, 0
    while True:

        def read(
            session: Session, behind: int = after
        ) -> tuple[Sequence[int], list[BackupContent]]:
            ids = page_of_held(session, target, tenant_id, behind, limit=MOST_ASKED)
            return ids, list(_readable(session, ids))

        ids, contents = deps.db.run_session(read, read_only=True)
        yield from contents
        if len(ids) < MOST_ASKED:
            return
        after = ids[-1]


def stretch(
    session: Session, target: str, tenant_id: str, *, limit: int = MOST_ASKED
) -> Sequence[BackupContent]:
    """Return the contents behind a point that is drawn, from the first on when none is there."""
    # Of all targets: the end of the primary key is at hand, that of one target is not.
    newest = session.scalar(sa.select(sa.func.max(BackupContent.id)))
    begins = (random.randrange(newest) if newest else 0), 0
    for after in begins:
        ids = page_of_held(session, target, tenant_id, after, limit=limit)
        if ids:
            return _readable(session, ids)
    return ()


def _readable(session: Session, ids: Sequence[int]) -> Sequence[BackupContent]:
    return session.scalars(
        sa.select(BackupContent).where(BackupContent.id.in_(ids), BackupContent.state.in_(READABLE))
    ).all()
