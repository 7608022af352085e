"""From a part in staging to a part that counts; and when its file may go again.

The same care as for whole objects: a file that a committed row names is never removed.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
import structlog
from sqlalchemy.orm import Session

from services.api.storing import discard
from shared.catalog.models import UploadPart
from shared.catalog.uploading.parts import PartAnswer, StagedPart, put_part
from shared.catalog.uploading.rules import UploadLimits
from shared.core.errors import UnavailableError
from shared.core.failpoints import failpoint
from shared.outbox.db import Database
from shared.storage.staging import Staging
from shared.storage.staging_writer import Staged

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOrder:
    """Which part of which upload."""

    tenant_id: str
    upload_id: str
    number: int
    limits: UploadLimits


def store_part(
    database: Database, staging: Staging, staged: Staged, order: PartOrder
) -> PartAnswer:
    """Let a staged part count. Blocks; opens its own transactions.

    Raises what `put_part` raises, and UnavailableError. The staged file is removed whenever it is
    certain that no row names it, that of the part before it after the commit.
    """
    failpoint("uploads.part_staged")
    part = StagedPart(
        number=order.number,
        staging_key=staged.key,
        size=staged.size,
        sha256=staged.sha256,
        md5=staged.md5,
    )
    written: PartAnswer | None = None

    def work(session: Session) -> PartAnswer:
        nonlocal written
        written = None
        written = put_part(session, order.tenant_id, order.upload_id, part, order.limits)
        failpoint("uploads.part_written")
        return written

    try:
        answer = database.run_session(work)
    except BaseException as error:
        if written is None:
            discard(staging, staged.key)
            raise
        # Past put_part only the COMMIT can have failed: perhaps it was carried out.
        if not isinstance(error, Exception) or not _is_committed(database, staged.key):
            raise
        answer = written
    failpoint("uploads.part_committed")
    discard(staging, *answer.released)
    return answer


def _is_committed(database: Database, key: str) -> bool:
    """Look the part up by its file, whose key no other part has."""
    try:
        found = database.run_session(
            lambda session: session.scalar(
                sa.select(sa.exists().where(UploadPart.staging_key == key))
            ),
            read_only=True,
        )
    except UnavailableError:
        found = None
    log.warning("part_commit_unknown", key=key, is_committed=bool(found))
    return bool(found)
