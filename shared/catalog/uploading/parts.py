"""The parts of a session: written in any order and again, the last committed one counts."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import UploadPart, utc_clock, utc_now
from shared.catalog.uploading.rules import MAX_PARTS, UploadLimits
from shared.catalog.uploading.sessions import LockedSession, check_takes_parts, lock_session
from shared.core.errors import InvalidError, TooLargeError

#: Rows that one statement deletes.
_PAGE_ROWS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedPart:
    """A part that is durable in staging; digests in hexadecimal."""

    number: int
    staging_key: str
    size: int
    sha256: str
    md5: str


@dataclass(frozen=True, slots=True)
class PartAnswer:
    """A part that counts now. The staging files of `released` may be unlinked after the commit."""

    part: UploadPart
    expires_at: dt.datetime
    released: tuple[str, ...]


def room_for_part(
    session: Session, found: LockedSession, number: int, size: int | None, limits: UploadLimits
) -> int:
    """Return how many bytes a part may have, before any of them is read.

    Raises ConflictError when the session takes none, InvalidError (`part_number_invalid`) and
    TooLargeError.
    """
    if not 1 <= number <= MAX_PARTS:
        raise InvalidError(
            f"parts have the numbers 1 to {MAX_PARTS}", code="part_number_invalid", number=number
        )
    check_takes_parts(found)
    most = min(limits.max_part_bytes, _room(session, found, number, limits.max_object_bytes))
    if size is not None and size > most:
        raise TooLargeError(
            f"this part may have at most {most} bytes, it has {size}",
            code="part_too_large",
            max_part_bytes=most,
            size=size,
        )
    return most


def put_part(
    session: Session, tenant_id: str, public_id: str, staged: StagedPart, limits: UploadLimits
) -> PartAnswer:
    """Let a staged part count, in the place of an earlier one, and renew the session's expiry.

    Raises as `room_for_part`, and NotFoundError; then nothing names the part's file.
    """
    found = lock_session(session, tenant_id, public_id)
    room_for_part(session, found, staged.number, staged.size, limits)
    row = found.row
    old = session.get(UploadPart, (row.id, staged.number), populate_existing=True)
    released: tuple[str, ...] = ()
    if old is None:
        part = UploadPart(session_id=row.id, number=staged.number)
        session.add(part)
        row.part_count += 1
    else:
        part = old
        released = (old.staging_key,)
        row.received_bytes -= old.size_bytes
    part.staging_key = staged.staging_key
    part.size_bytes = staged.size
    part.sha256 = staged.sha256
    part.md5 = staged.md5
    part.created_at = utc_clock()
    row.received_bytes += staged.size
    row.expires_at = utc_now(limits.expiry_seconds)
    session.flush()
    session.refresh(part)
    session.refresh(row)
    if row.expires_at is None:
        raise AssertionError("an open session expires")
    return PartAnswer(part, row.expires_at, released)


def parts_of(
    session: Session, session_id: int, *, after: int = 0, limit: int | None = None
) -> Sequence[UploadPart]:
    """Return the parts of a session by number, all of them or a page behind `after`."""
    return session.scalars(
        sa.select(UploadPart)
        .where(UploadPart.session_id == session_id, UploadPart.number > after)
        .order_by(UploadPart.number)
        .limit(limit)
        .execution_options(populate_existing=True)
    ).all()


def drop_parts(session: Session, parts: Iterable[UploadPart]) -> tuple[str, ...]:
    """Delete part rows of a locked session; returns their files, which nobody names any more."""
    gone = list(parts)
    for start in range(0, len(gone), _PAGE_ROWS):
        page = gone[start : start + _PAGE_ROWS]
        session.execute(
            sa.delete(UploadPart)
            .where(
                UploadPart.session_id == page[0].session_id,
                UploadPart.number.in_([part.number for part in page]),
            )
            .execution_options(synchronize_session=False)
        )
    released = tuple(part.staging_key for part in gone)
    for part in gone:
        session.expunge(part)
    return released


def _room(session: Session, found: LockedSession, number: int, max_object_bytes: int) -> int:
    """Return what the other parts leave of the largest object."""
    own = session.scalar(
        sa.select(UploadPart.size_bytes).where(
            UploadPart.session_id == found.row.id, UploadPart.number == number
        )
    )
    return max(0, max_object_bytes - found.row.received_bytes + (own or 0))
