"""Invariants of resumable uploads: every operation has one result, every part an upload."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import (
    Bucket,
    ObjectRow,
    SessionState,
    UploadPart,
    UploadSession,
    Version,
)
from shared.catalog.payloads import UPLOAD_ASSEMBLE
from shared.outbox.breach import Breach
from shared.outbox.schema import tasks
from shared.outbox.states import ACTIVE

_ACTIVE = tuple(sorted(ACTIVE))
#: States whose part rows are what counts.
_WITH_PARTS = (SessionState.OPEN, SessionState.COMPLETING, SessionState.FAILED)
#: States in which an operation has no result yet.
_WITHOUT_RESULT = (SessionState.OPEN, SessionState.COMPLETING, SessionState.ABORTED)


def session_breaches(session: Session, late: dt.datetime, swept: dt.datetime) -> Iterator[Breach]:
    """Yield uploads without the task or the result that they should have, and stray parts.

    What is younger than `late` may be on its way; what was over before `swept` waits for a sweep.
    """
    yield from _without_task(session)
    yield from _tasks_for_nothing(session, late)
    yield from _results(session)
    yield from _parts(session)
    yield from _overdue(session, swept)


def _without_task(session: Session) -> Iterator[Breach]:
    query = (
        sa.select(UploadSession.public_id, UploadSession.task_id, tasks.c.state)
        .outerjoin(tasks, tasks.c.id == UploadSession.task_id)
        .where(
            UploadSession.state == SessionState.COMPLETING,
            sa.or_(
                tasks.c.id.is_(None),
                tasks.c.state.not_in(_ACTIVE),
                tasks.c.kind != UPLOAD_ASSEMBLE,
            ),
        )
    )
    for upload, task_id, state in session.execute(query):
        detail = f"completing, but its task {task_id} is {state or 'not there'}"
        yield Breach("unfinished rows have their task", f"upload {upload}", detail)


def _tasks_for_nothing(session: Session, late: dt.datetime) -> Iterator[Breach]:
    query = (
        sa.select(tasks.c.id, tasks.c.state, UploadSession.public_id, UploadSession.state)
        .outerjoin(UploadSession, UploadSession.task_id == tasks.c.id)
        .where(
            tasks.c.kind == UPLOAD_ASSEMBLE,
            tasks.c.state.in_(_ACTIVE),
            tasks.c.cancel_requested == 0,
            tasks.c.created_at < late,
            sa.or_(UploadSession.id.is_(None), UploadSession.state != SessionState.COMPLETING),
        )
    )
    for task_id, task_state, upload, state in session.execute(query):
        detail = f"{UPLOAD_ASSEMBLE} is {task_state}, its upload {upload} is {state}"
        yield Breach("unfinished tasks have their row", f"task {task_id}", detail)


def _results(session: Session) -> Iterator[Breach]:
    """Done: a version of just this content and name. Failed: a reason. Else: nothing yet."""
    query = (
        sa.select(UploadSession, Version, ObjectRow, Bucket.id)
        .outerjoin(Version, Version.id == UploadSession.version_id)
        .outerjoin(ObjectRow, ObjectRow.id == Version.object_id)
        .outerjoin(Bucket, Bucket.id == UploadSession.bucket_id)
        .execution_options(yield_per=500)
    )
    for row, version, item, bucket_id in session.execute(query):
        fault = _fault(row, version, item, is_in_bucket=bucket_id is not None)
        if fault:
            yield Breach("an operation has one result", f"upload {row.public_id}", fault)


def _fault(
    row: UploadSession, version: Version | None, item: ObjectRow | None, *, is_in_bucket: bool
) -> str:
    if row.state in _WITHOUT_RESULT:
        has_one = row.result is not None or row.version_id is not None
        return f"{row.state}, but it has a result" if has_one else ""
    if row.result is None:
        return f"{row.state}, but it has no result"
    if row.state == SessionState.FAILED:
        return "failed, but it has a version" if row.version_id is not None else ""
    if row.version_id != row.result.get("version_id"):
        return f"its result names version {row.result.get('version_id')}, not {row.version_id}"
    if version is None or item is None:
        # A bucket that was deleted has taken them along.
        return f"its version {row.version_id} is not there" if is_in_bucket else ""
    if (item.bucket_id, item.key) != (row.bucket_id, row.key):
        return f"its version {version.id} has another name"
    declared = (row.size_bytes, row.sha256)
    actual = (version.size_bytes, version.sha256)
    if any(said is not None and said != has for said, has in zip(declared, actual, strict=True)):
        return f"its version {version.id} is not what was declared"
    return ""


def _parts(session: Session) -> Iterator[Breach]:
    count, size = sa.func.count(), sa.func.sum(UploadPart.size_bytes)
    held = (
        sa.select(UploadPart.session_id, count.label("parts"), size.label("bytes"))
        .group_by(UploadPart.session_id)
        .subquery()
    )
    strays = (
        sa.select(held.c.session_id, UploadSession.state)
        .outerjoin(UploadSession, UploadSession.id == held.c.session_id)
        .where(sa.or_(UploadSession.id.is_(None), UploadSession.state == SessionState.DONE))
    )
    for session_id, state in session.execute(strays):
        detail = f"there are parts of it, but it is {state or 'not there'}"
        yield Breach("parts belong to an upload", f"upload {session_id}", detail)
    counted = (
        sa.select(
            UploadSession.public_id,
            UploadSession.part_count,
            UploadSession.received_bytes,
            sa.func.coalesce(held.c.parts, 0),
            sa.func.coalesce(held.c.bytes, 0),
        )
        .outerjoin(held, held.c.session_id == UploadSession.id)
        .where(
            UploadSession.state.in_(_WITH_PARTS),
            sa.or_(
                UploadSession.part_count != sa.func.coalesce(held.c.parts, 0),
                UploadSession.received_bytes != sa.func.coalesce(held.c.bytes, 0),
            ),
        )
    )
    for upload, parts, received, has_parts, has_bytes in session.execute(counted):
        detail = f"{parts} parts of {received} bytes, but there are {has_parts} of {has_bytes}"
        yield Breach("parts belong to an upload", f"upload {upload}", detail)


def _overdue(session: Session, swept: dt.datetime) -> Iterator[Breach]:
    query = sa.select(UploadSession.public_id, UploadSession.state, UploadSession.expires_at).where(
        UploadSession.state.in_((SessionState.OPEN, SessionState.ABORTED)),
        UploadSession.expires_at < swept,
    )
    for upload, state, expired_at in session.execute(query):
        detail = f"{state}, over since {expired_at}, and no sweep took it"
        yield Breach("uploads that are over go", f"upload {upload}", detail)
