"""Removing bytes from a backup target: condemned contents, and late writes under old keys.

As `shared.catalog.erasing` for locations: not found is success, and a target that fails parks the
row until a later try.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import sqlalchemy as sa
import structlog
from sqlalchemy.orm import Session

from shared.catalog.erasing import (
    PLACE_SECONDS,
    ChannelBook,
    Place,
    erase_bytes,
    wait_after_failures,
)
from shared.catalog.models import BackupContent, BackupContentState, utc_clock, utc_now
from shared.core.clock import Deadline
from shared.core.failpoints import failpoint
from shared.outbox.db import Database
from shared.storage.errors import BreakerOpen, ChannelError, DeadlinePassed

_GOING = (BackupContentState.CONDEMNED, BackupContentState.DELETE_FAILED)
_log = structlog.get_logger("catalog.backups")


def due_contents(session: Session, *, target: str | None, limit: int) -> list[Place]:
    """Return condemned contents and failed removals that are due, of one target or of all."""
    statement = sa.select(BackupContent).where(
        BackupContent.state.in_(_GOING),
        sa.or_(BackupContent.next_try_at.is_(None), BackupContent.next_try_at <= utc_now()),
    )
    if target is not None:
        statement = statement.where(BackupContent.target == target)
    rows = session.scalars(statement.order_by(BackupContent.id).limit(limit))
    return [place_of_content(row) for row in rows]


def place_of_content(row: BackupContent) -> Place:
    """Return what removing a content needs."""
    return Place(row.id, row.target, row.key, row.upload_id, row.tries)


def erase_content(
    db: Database,
    channels: ChannelBook,
    place: Place,
    *,
    deadline: Deadline,
    check: Callable[[], None] | None = None,
) -> bool:
    """Delete a condemned content's bytes and make its row a tombstone; False when parked.

    `check` is asked while the target does not answer.
    """
    found = channels.find(place.channel)
    if found is None:
        return _park(db, place, "the channel is not in the catalogue")
    try:
        erase_bytes(found[0], place, deadline=deadline.within(PLACE_SECONDS), check=check)
    except BreakerOpen as error:
        return _park(db, place, str(error), seconds=error.retry_after_seconds)
    except DeadlinePassed as error:
        if deadline.expired():
            raise
        return _park(db, place, str(error))
    except ChannelError as error:
        return _park(db, place, str(error))
    failpoint("backup.after_erase")
    values = {
        "state": BackupContentState.TOMBSTONE,
        "tombstone_at": utc_clock(),
        "next_try_at": None,
        "error_detail": None,
    }
    db.run_session(lambda session: _update_going(session, place.location_id, values))
    return True


def unprobed_contents(
    session: Session, *, age_seconds: float, limit: int, away: Collection[str] = ()
) -> Sequence[Place]:
    """Return tombstones whose keys may have met a late write and were not probed since.

    Those on the targets `away` are left out.
    """
    rows = session.scalars(
        sa.select(BackupContent)
        .where(
            BackupContent.state == BackupContentState.TOMBSTONE,
            BackupContent.probed_at.is_(None),
            BackupContent.tombstone_at <= utc_now(-age_seconds),
            BackupContent.target.not_in(sorted(away)),
        )
        .order_by(BackupContent.id)
        .limit(limit)
    )
    return [place_of_content(row) for row in rows]


def note_probe(session: Session, content_id: int) -> None:
    """Remember that a tombstone's key was probed."""
    session.execute(
        sa.update(BackupContent)
        .where(BackupContent.id == content_id, BackupContent.state == BackupContentState.TOMBSTONE)
        .values(probed_at=utc_clock())
        .execution_options(synchronize_session=False)
    )


def _park(db: Database, place: Place, detail: str, *, seconds: float | None = None) -> bool:
    tries = place.tries + (1 if seconds is None else 0)
    wait_seconds = wait_after_failures(tries) if seconds is None else seconds
    _log.warning(
        "backup_content_parked",
        content_id=place.location_id,
        channel=place.channel,
        tries=tries,
        wait_seconds=wait_seconds,
        error=detail,
    )
    values = {
        "state": BackupContentState.DELETE_FAILED,
        "tries": tries,
        "next_try_at": utc_now(wait_seconds),
        "error_detail": detail[:2000],
    }
    db.run_session(lambda session: _update_going(session, place.location_id, values))
    return False


def _update_going(session: Session, content_id: int, values: Mapping[str, object]) -> None:
    session.execute(
        sa.update(BackupContent)
        .where(BackupContent.id == content_id, BackupContent.state.in_(_GOING))
        .values(**values)
        .execution_options(synchronize_session=False)
    )
