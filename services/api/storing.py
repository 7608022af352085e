"""From a body in staging to an acknowledged version; and when the staged bytes may go again.

Bytes that a committed row names must never be removed, so a commit whose answer was lost is looked
up, and left to the staging cleanup while it cannot be.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
import structlog
from sqlalchemy.orm import Session

from services.api.uploads import Declared
from shared.catalog.conditions import Conditions
from shared.catalog.context import Catalogue
from shared.catalog.models import Version
from shared.catalog.puts import PutAnswer, Staged, commit_put
from shared.core.clock import Deadline
from shared.core.errors import BloxError, UnavailableError
from shared.core.failpoints import failpoint
from shared.outbox.db import Database
from shared.storage import staging_writer
from shared.storage.staging import Staging

log = structlog.get_logger()

#: Removing staged files; they lie on a local or mounted file system.
REMOVE_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be written where."""

    bucket_id: int
    key: str
    declared: Declared
    conditions: Conditions
    trace_parent: str | None = None


def store(
    database: Database,
    catalogue: Catalogue,
    staging: Staging,
    staged: staging_writer.Staged,
    order: Order,
) -> PutAnswer:
    """Commit a staged body as a new version. Blocks; opens its own transactions.

    Raises what `commit_put` raises, and UnavailableError. The staged file is removed whenever it is
    certain that no row names it.
    """
    failpoint("api.put.staged")
    body = Staged(
        key=staged.key,
        size=staged.size,
        sha256=staged.sha256,
        etag=staged.md5,
        content_type=order.declared.content_type,
        metadata=order.declared.metadata,
        lifetime=order.declared.lifetime,
    )
    written: PutAnswer | None = None

    def work(session: Session) -> PutAnswer:
        nonlocal written
        written = None
        written = commit_put(
            session,
            catalogue,
            order.bucket_id,
            order.key,
            body,
            conditions=order.conditions,
            trace_parent=order.trace_parent,
        )
        failpoint("api.put.written")
        return written

    try:
        answer = database.run_session(work)
    except BaseException as error:
        if written is None:
            discard(staging, staged.key)
            raise
        # Past commit_put only the COMMIT, or what follows it, can have failed: whatever the error
        # says, it was perhaps carried out.
        if not isinstance(error, Exception) or not _is_committed(database, written, body):
            raise
        answer = written
    failpoint("api.put.committed")
    discard(staging, *answer.released)
    return answer


def discard(staging: Staging, *keys: str) -> None:
    """Remove staged files that no row names; what cannot be removed now is the cleanup's."""
    deadline = Deadline(REMOVE_SECONDS)
    for key in keys:
        try:
            staging.remove(key, deadline=deadline)
        except BloxError as error:
            log.warning("staged_file_left", key=key, error=str(error))


def _is_committed(database: Database, written: PutAnswer, body: Staged) -> bool:
    """Look the version up. An id may be given out again after a rollback, so its content counts."""
    try:
        found = database.run_session(
            lambda session: session.execute(
                sa.select(Version.id).where(
                    Version.id == written.version_id,
                    Version.generation == written.generation,
                    Version.sha256 == body.sha256,
                )
            ).scalar_one_or_none(),
            read_only=True,
        )
    except UnavailableError:
        found = None
    log.warning("put_commit_unknown", version_id=written.version_id, is_committed=found is not None)
    return found is not None
