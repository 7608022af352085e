"""What a backup target holds: intents under fresh keys, contents, and what they are needed for.

A content's row lock guards whether it may be named by another run or removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import (
    BackupContent,
    BackupContentState,
    BackupItem,
    BackupRun,
    BackupRunState,
    ChannelRecord,
    utc_clock,
)
from shared.storage.errors import ChannelUnavailable
from shared.storage.keys import fresh_key

if TYPE_CHECKING:
    from shared.outbox.execution import Execution

Kind = Literal["content", "manifest"]

#: Runs in one of these need what their items name.
NEEDING = (BackupRunState.OPEN, BackupRunState.COMPLETE, BackupRunState.FOLLOWING)
#: What is believed to be right.
READABLE = (BackupContentState.STORED, BackupContentState.SPARE)


def stored_contents(
    session: Session, target: str, tenant_id: str, digests: Iterable[str]
) -> dict[tuple[str, int], BackupContent]:
    """Return what the target holds of these, by SHA-256 and size. Nothing is locked."""
    rows = session.scalars(
        sa.select(BackupContent)
        .where(
            BackupContent.target == target,
            BackupContent.tenant_id == tenant_id,
            BackupContent.sha256.in_(sorted(digests)),
            BackupContent.live_slot == 1,
        )
        .execution_options(populate_existing=True)
    )
    return {(row.sha256, row.size_bytes): row for row in rows}


def lock_contents(session: Session, rows: Iterable[BackupContent]) -> dict[int, BackupContent]:
    """Lock contents by ascending id and read them anew."""
    return lock_content_ids(session, [row.id for row in rows])


def lock_content_ids(session: Session, ids: Iterable[int]) -> dict[int, BackupContent]:
    """Lock contents by ascending id and read them anew; those that are not there are left out."""
    wanted = sorted(set(ids))
    if not wanted:
        return {}
    statement = sa.select(BackupContent).where(BackupContent.id.in_(wanted))
    for dialect in ("mysql", "mariadb"):
        statement = statement.with_hint(BackupContent, "FORCE INDEX (PRIMARY)", dialect)
    rows = session.scalars(
        statement.order_by(BackupContent.id)
        .with_for_update()
        .execution_options(populate_existing=True)
    )
    return {row.id: row for row in rows}


def begin_content(
    session: Session,
    *,
    target: str,
    tenant_id: str,
    kind: Kind,
    prefix: str,
    sha256: str,
    size_bytes: int,
    run_id: int,
    execution: Execution,
) -> BackupContent:
    """Write an intent under a fresh key. Raises ChannelUnavailable when the target was removed."""
    # Shared until the commit: a channel goes either before this intent, or not at all.
    if session.get(ChannelRecord, target, with_for_update={"read": True}) is None:
        raise ChannelUnavailable("the channel is gone", channel=target)
    content = BackupContent(
        target=target,
        tenant_id=tenant_id,
        kind=kind,
        sha256=sha256,
        size_bytes=size_bytes,
        key=fresh_key(prefix),
        state=BackupContentState.INTENT,
        run_id=run_id,
        task_id=execution.task.id,
        fence=execution.fence,
        created_at=utc_clock(),
    )
    session.add(content)
    session.flush()
    return content


def adopt_content(session: Session, content_id: int, *, execution: Execution) -> bool:
    """Take over the intent of an earlier execution of the same task; False when it is none now."""
    done = session.execute(
        sa.update(BackupContent)
        .where(
            BackupContent.id == content_id,
            BackupContent.state == BackupContentState.INTENT,
            BackupContent.task_id == execution.task.id,
        )
        .values(fence=execution.fence)
        .execution_options(synchronize_session=False)
    )
    return int(done.rowcount) == 1  # type: ignore[attr-defined]


def keep_content_upload(session: Session, content_id: int, upload_id: str) -> None:
    """Keep the channel's id of an open multipart upload, so that a sweep can abort it."""
    session.execute(
        sa.update(BackupContent)
        .where(BackupContent.id == content_id, BackupContent.state == BackupContentState.INTENT)
        .values(upload_id=upload_id)
        .execution_options(synchronize_session=False)
    )


def store_content(content: BackupContent, *, etag: str) -> None:
    """Make a locked intent what the target holds."""
    content.state = BackupContentState.STORED
    content.etag = etag[:255]
    content.upload_id = None
    content.unneeded_at = None
    content.stored_at = utc_clock()


def is_needed(session: Session, content: BackupContent) -> bool:
    """Tell whether a complete or open run names a locked content."""
    if content.kind == "manifest":
        named = sa.exists().where(
            BackupRun.manifest_id == content.id,
            BackupRun.id == content.run_id,
            BackupRun.state == BackupRunState.COMPLETE,
        )
    else:
        named = sa.exists().where(
            BackupItem.content_id == content.id,
            BackupRun.id == BackupItem.run_id,
            BackupRun.state.in_(NEEDING),
        )
    return session.scalar(sa.select(named)) is True
