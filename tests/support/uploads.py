"""Resumable uploads on a stand, as the API would make them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import Bucket, UploadPart, UploadSession, Version, utc_now
from shared.catalog.uploading.completing import complete_session
from shared.catalog.uploading.parts import StagedPart, parts_of, put_part
from shared.catalog.uploading.removal import remove_session
from shared.catalog.uploading.rules import CompleteOrder, SessionSpec, UploadLimits
from shared.catalog.uploading.sessions import abort_session, begin_session
from shared.core.clock import Deadline
from tests.support.handlers import TENANT, Stand

LIMITS = UploadLimits(
    max_object_bytes=1 << 30,
    min_part_bytes=1,
    max_part_bytes=1 << 28,
    expiry_seconds=3600.0,
    max_open=100,
)


def begin(
    stand: Stand, bucket_id: int, key: str, *, operation_id: str = "", **more: Any
) -> UploadSession:
    """Begin an upload, or find it again."""
    spec = SessionSpec(
        operation_id=operation_id or f"op-{key}", key=key, content_type="text/plain", **more
    )

    def write(session: Session) -> UploadSession:
        return begin_session(session, session.get_one(Bucket, bucket_id), spec, LIMITS).row

    return stand.db.run_session(write)


def send(stand: Stand, upload: UploadSession, number: int, content: bytes) -> None:
    """Send one part."""
    staged = stand.stage(content)
    part = StagedPart(
        number=number,
        staging_key=staged.key,
        size=staged.size,
        sha256=staged.sha256,
        md5=staged.etag,
    )
    answer = stand.db.run_session(
        lambda session: put_part(session, TENANT, upload.public_id, part, LIMITS)
    )
    for key in answer.released:
        stand.staging.remove(key, deadline=Deadline(10))


def complete(stand: Stand, upload: UploadSession, **order: Any) -> UploadSession:
    """Freeze it; returns its row with the task."""
    return stand.db.run_session(
        lambda session: complete_session(
            session,
            stand.catalogue,
            TENANT,
            upload.public_id,
            CompleteOrder(**order),
            min_part_bytes=LIMITS.min_part_bytes,
        )
    ).row


def frozen(
    stand: Stand, bucket_id: int, key: str, contents: Sequence[bytes], **more: Any
) -> UploadSession:
    """Return an upload of these parts that waits for its task."""
    upload = begin(stand, bucket_id, key, **more)
    for number, content in enumerate(contents, start=1):
        send(stand, upload, number, content)
    return complete(stand, upload)


def abort(stand: Stand, upload: UploadSession) -> bool:
    """Give it up and remove it."""
    stand.db.run_session(
        lambda session: abort_session(session, stand.catalogue, TENANT, upload.public_id)
    )
    return remove_session(stand.db, stand.staging, upload.id, deadline=Deadline(10))


def row(stand: Stand, upload: UploadSession) -> UploadSession | None:
    """Return the session as it is now, None when it is gone."""
    return stand.look(lambda session: session.get(UploadSession, upload.id))


def outcome(stand: Stand, upload: UploadSession) -> tuple[str, dict[str, Any]]:
    """Return the state and the result of an upload that is over."""
    found = row(stand, upload)
    assert found is not None
    assert found.result is not None
    return found.state, found.result


def version_of(stand: Stand, upload: UploadSession) -> Version:
    """Return the version that it has become."""
    found = row(stand, upload)
    assert found is not None
    assert found.version_id is not None
    return stand.version(found.version_id)


def parts(stand: Stand, upload: UploadSession) -> Sequence[UploadPart]:
    """Return its parts as they are now."""
    return stand.look(lambda session: parts_of(session, upload.id))


def backdate(stand: Stand, upload: UploadSession, *, only: str | None = None) -> None:
    """Let its time be over; with `only`, if it is in that state."""
    change = sa.update(UploadSession).where(UploadSession.id == upload.id)
    if only is not None:
        change = change.where(UploadSession.state == only)
    stand.db.run_session(lambda session: session.execute(change.values(expires_at=utc_now(-1.0))))


def files(stand: Stand) -> set[str]:
    """Return the keys of the files in staging."""
    old = stand.staging.old(minimum_age_seconds=0.0, deadline=Deadline(5))
    return {entry.key for entry in old}
