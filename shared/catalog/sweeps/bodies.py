"""Multipart uploads in staging whose bodies nobody goes on with: aborted.

A body belongs to the process that takes it in. It is over when that process has not been seen for
long, since it could acknowledge nothing any more, or when the body has outlived what a writer
gives itself; age alone proves nothing. A file that is put together of others belongs to its task.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import utc_now as ago
from shared.catalog.sweeps.context import Pass, SweepContext
from shared.catalog.sweeps.joins import joins_under_way
from shared.core.clock import Deadline, utc_now
from shared.outbox.schema import nodes
from shared.storage.channel import OpenUpload
from shared.storage.errors import ChannelError
from shared.storage.staging import Staging
from shared.storage.staging_objects import BODY_SECONDS, CALL_SECONDS

#: A process that reports every two seconds is not gone before.
_LEAST_SILENCE_SECONDS = 15.0
#: Seconds that one abort may take.
_ABORT_SECONDS = 60.0


class BodySweep:
    """Keeps in memory which uploads the last pass found over: two passes must agree."""

    name = "bodies"

    def __init__(self, context: SweepContext) -> None:
        self._context = context
        self._seen: frozenset[OpenUpload] = frozenset()

    def run(self, turn: Pass) -> None:
        """Make one pass. The listing ends without an error before anything is aborted."""
        staging, age_seconds = self._context.staging, self._context.limits.min_age_seconds
        uploads = list(staging.open_uploads(deadline=turn.deadline))
        if not uploads:
            self._seen = frozenset()
            return
        over = frozenset(
            self._context.db.run_session(
                lambda session: bodies_over(session, staging, uploads, age_seconds=age_seconds),
                read_only=True,
            )
        )
        agreed, self._seen = over & self._seen, over
        turn.counts["over"] = len(over)
        for upload in sorted(agreed, key=lambda one: one.key):
            if turn.may_remove("aborted", key=upload.key, upload_id=upload.upload_id):
                self._abort(upload, turn)

    def _abort(self, upload: OpenUpload, turn: Pass) -> None:
        deadline: Deadline = turn.deadline.within(_ABORT_SECONDS)
        try:
            self._context.staging.channel.abort_upload(
                upload.key, upload.upload_id, deadline=deadline
            )
        except ChannelError:
            turn.counts["aborts_failed"] += 1


def bodies_over(
    session: Session, staging: Staging, uploads: Collection[OpenUpload], *, age_seconds: float
) -> list[OpenUpload]:
    """Return the uploads that began long ago and that no writer can complete any more.

    A process counts as gone when it was not seen for `age_seconds`.
    """
    silence_seconds = max(age_seconds, _LEAST_SILENCE_SECONDS)
    alive = frozenset(
        session.scalars(sa.select(nodes.c.node).where(nodes.c.last_seen >= ago(-silence_seconds)))
    )
    joined = joins_under_way(session, [upload.key for upload in uploads])
    latest = utc_now() - dt.timedelta(seconds=age_seconds)
    outlived = utc_now() - dt.timedelta(seconds=BODY_SECONDS + CALL_SECONDS)
    return [
        upload
        for upload in uploads
        if upload.started_at <= latest
        and upload.key not in joined
        and (upload.started_at <= outlived or not staging.wrote(upload.key, alive))
    ]
