"""Job 7, object_expiry: deletes what is due, and brings changed rules to what is there already.

Safe on many schedulers at once: each deletion is judged anew under the locks of its key.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
from sqlalchemy.orm import Session

from services.scheduler.clock import Tick
from services.scheduler.telling import tell
from shared.catalog import expiries, lifecycle_walks
from shared.catalog.context import Catalogue
from shared.core.clock import Deadline
from shared.core.errors import BloxError, ShuttingDown
from shared.core.failpoints import failpoint
from shared.outbox.db import Database
from shared.runtime.assembly import Parts
from shared.storage.staging import Staging

#: Rows that one look reads.
PAGE_ROWS = 200
#: Seconds that one run may take; what is left waits for the next one.
RUN_SECONDS = 240.0
#: Removing staged files; they lie on a local or mounted file system.
_REMOVE_SECONDS = 10.0

#: What a run leaves as it is, and meets again: told alone, it would fill the log.
_LEFT = (
    "looked_at",
    expiries.Outcome.HELD,
    expiries.Outcome.UNREPLICATED,
    expiries.Outcome.WAITING,
)

_log = structlog.get_logger("scheduler.expiry")


@dataclass(slots=True, kw_only=True)
class ObjectExpiry:
    """The job of one process. It remembers where the last run stopped, so that what cannot go yet
    holds up nothing behind it.
    """

    db: Database
    catalogue: Catalogue
    staging: Staging
    max_objects: int = 10_000
    _after: expiries.Due | None = field(default=None, init=False)

    def run_once(self, *, deadline: Deadline, check: Callable[[], None]) -> Counter[str]:
        """Make one run; returns how many versions came to which outcome.

        `check` raises a StopError to end it early. Nothing is done where nobody serves deletions.
        """
        counts: Counter[str] = Counter()
        if not self.catalogue.serves("delete"):
            return counts
        self._walk(counts, deadline, check)
        while not deadline.expired():
            limit = min(PAGE_ROWS, self.max_objects - counts["looked_at"])
            page = self._page(limit)
            for seen in page:
                check()
                counts["looked_at"] += 1
                counts[self._expire(seen)] += 1
                self._after = seen
            if len(page) < limit:
                # From the start again: what was kept is asked anew by the next run.
                self._after = None
                break
            if counts["looked_at"] >= self.max_objects:
                break
        return counts

    def _page(self, limit: int) -> list[expiries.Due]:
        after = self._after
        return self.db.run_session(
            lambda session: expiries.find_due(session, after, limit=limit), read_only=True
        )

    def _expire(self, seen: expiries.Due) -> str:
        def work(session: Session) -> expiries.Expired:
            expired = expiries.expire(session, self.catalogue, seen)
            failpoint("expiry.written")
            return expired

        expired = self.db.run_session(work)
        failpoint("expiry.committed")
        deadline = Deadline(_REMOVE_SECONDS)
        for key in expired.released:
            try:
                self.staging.remove(key, deadline=deadline)
            except BloxError as error:
                # The cleanup finds it.
                _log.warning("staged_file_left", key=key, error=str(error))
        return expired.outcome

    def _walk(self, counts: Counter[str], deadline: Deadline, check: Callable[[], None]) -> None:
        half = Deadline(deadline.remaining() / 2)
        buckets = self.db.run_session(
            lambda session: lifecycle_walks.open_walks(session, limit=PAGE_ROWS), read_only=True
        )
        for bucket_id in buckets:
            while not half.expired():
                check()
                counts["pages_told"] += 1
                if not self._walk_page(bucket_id):
                    break

    def _walk_page(self, bucket_id: int) -> bool:
        goes_on = self.db.run_session(lambda session: lifecycle_walks.walk_page(session, bucket_id))
        failpoint("expiry.page_told")
        return goes_on


def object_expiry(parts: Parts) -> Tick:
    """Delete objects whose time is over."""
    job = ObjectExpiry(
        db=parts.outbox.context.db,
        catalogue=parts.catalogue,
        staging=parts.staging,
        max_objects=parts.settings.scheduler.expiry_objects,
    )

    def act(stopping: threading.Event) -> None:
        def check() -> None:
            if stopping.is_set():
                raise ShuttingDown("the scheduler stops")

        counts = job.run_once(deadline=Deadline(RUN_SECONDS), check=check)
        tell(_log, "objects_expired", counts, looks=_LEFT)

    return Tick(
        "object_expiry",
        act,
        every_seconds=parts.settings.scheduler.expiry_seconds,
        limit_seconds=RUN_SECONDS + parts.settings.health.loop_seconds,
    )
