"""A session whose parts have all come: frozen in one transaction, with the task that joins them.

This is when the object is written, as far as its other writers are concerned: the same transaction
judges the conditions and takes the key's next generation, so that whoever writes later wins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy.orm import Session

from shared.catalog.buckets import way_of
from shared.catalog.context import Catalogue
from shared.catalog.models import SessionState, UploadSession
from shared.catalog.payloads import UPLOAD_ASSEMBLE, AssembleUpload
from shared.catalog.regions import region_of
from shared.catalog.turns import lock_turn, take_turn
from shared.catalog.uploading.parts import drop_parts, parts_of
from shared.catalog.uploading.rules import CompleteOrder, choose_parts, conditions_of
from shared.catalog.uploading.sessions import check_takes_parts, find_session, lock_session
from shared.core.errors import ConflictError, InvalidError

#: Frozen, or over with a result.
_COMPLETED = frozenset({SessionState.COMPLETING, SessionState.DONE, SessionState.FAILED})


@dataclass(frozen=True, slots=True)
class Completed:
    """A session that is frozen or over, and whether this request froze it.

    The staging files of `released` may be unlinked after the commit.
    """

    row: UploadSession
    is_new: bool
    released: tuple[str, ...] = ()


def complete_session(
    session: Session,
    catalogue: Catalogue,
    tenant_id: str,
    public_id: str,
    order: CompleteOrder,
    *,
    min_part_bytes: int,
    admit: Callable[[str], None] = lambda _region: None,
    trace_parent: str | None = None,
) -> Completed:
    """Freeze a session with the parts that count, and enqueue the task that makes a version of it.

    Repeated, also after the end, it returns the same session. `admit` is asked with the task's
    region before it is made. Raises InvalidError for parts that do not fit, PreconditionError,
    ConflictError (`complete_mismatch`) for another completion than the first, NotFoundError.
    """
    row = find_session(session, tenant_id, public_id).row
    key = None
    if row.state == SessionState.OPEN:
        # The key before the session: the order of all locks.
        key = lock_turn(session, row.bucket_id, row.key)
    found = lock_session(session, tenant_id, public_id)
    row = found.row
    if row.state in _COMPLETED:
        if order.fingerprint not in (None, row.completion):
            raise ConflictError(
                "the upload was completed with other demands", code="complete_mismatch"
            )
        return Completed(row, is_new=False)
    check_takes_parts(found)
    if key is None:
        raise AssertionError("a session never becomes open again")
    bucket, locked = key
    catalogue.need(*way_of(bucket))
    there = parts_of(session, row.id)
    chosen = choose_parts(
        there,
        order,
        declared_size=row.size_bytes,
        min_part_bytes=min_part_bytes,
    )
    sha256 = _agreed(row.sha256, order.sha256)
    region = region_of(session, bucket, "upload")
    admit(region)
    generation = take_turn(session, locked, conditions_of(row.conditions))
    numbers = {part.number for part in chosen}
    released = drop_parts(session, [part for part in there if part.number not in numbers])
    enqueued = catalogue.tasks.enqueue(
        session,
        UPLOAD_ASSEMBLE,
        AssembleUpload(session_id=row.id, generation=generation),
        tenant_id=tenant_id,
        region=region,
        trace_parent=trace_parent,
    )
    row.state = SessionState.COMPLETING
    row.completion = order.fingerprint
    row.sha256 = sha256
    row.part_count = len(chosen)
    row.received_bytes = sum(part.size_bytes for part in chosen)
    row.task_id = enqueued.id
    row.expires_at = None
    session.flush()
    return Completed(row, is_new=True, released=released)


def _agreed(at_first: str | None, at_last: str | None) -> str | None:
    """Return the SHA-256 that the whole was declared to have: at the beginning, the end or both."""
    if at_first is not None and at_last is not None and at_first != at_last:
        raise InvalidError(
            "the upload was begun with another SHA-256",
            code="sha256_mismatch",
            expected=at_first,
            actual=at_last,
        )
    return at_last or at_first
