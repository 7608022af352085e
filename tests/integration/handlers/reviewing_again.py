"""A bucket whose content is reviewed again under other rules."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from shared.catalog.buckets import get_bucket
from shared.catalog.invariants.reviews import review_breaches
from shared.catalog.invariants.work import work_breaches
from shared.catalog.models import Review, ReviewRun, utc_now
from shared.catalog.puts import PutAnswer
from shared.catalog.reads import open_version
from shared.catalog.rereviews import runs
from shared.core.errors import NotFoundError
from tests.support.handlers import TENANT, Stand

GOOD = b"a harmless text"
ODD = b"a perhaps odd text"
OLD = {"reject_keywords": ["forbidden"]}
NEW = {"reject_keywords": ["perhaps"]}


def stored(stand: Stand, bucket: int, key: str, content: bytes) -> PutAnswer:
    """Put an object and store it."""
    put = stand.put(bucket, key, content)
    assert stand.work(put.task_id) == "completed"
    stand.work_all("upload")
    assert stand.version(put.version_id).state == "stored"
    return put


def start(stand: Stand) -> ReviewRun:
    """Start a run over the bucket."""
    return stand.db.run_session(
        lambda session: runs.start_run(session, stand.catalogue, TENANT, "photos", by="ann")
    )


def work(stand: Stand) -> None:
    """Run all reviews to their ends."""
    while stand.waiting("review"):
        stand.work_all("review")


def progress(stand: Stand, run_id: int) -> runs.Progress:
    """Return a run and its progress."""
    return stand.look(lambda session: runs.show_run(session, TENANT, run_id))


def again(stand: Stand, version_id: int) -> Review:
    """Return the re-review of a version."""
    return stand.look(
        lambda session: session.scalars(
            sa.select(Review).where(Review.version_id == version_id, Review.run_id != 0)
        ).one()
    )


def is_readable(stand: Stand, key: str) -> bool:
    """Tell whether a GET finds something."""

    def look(session: Any) -> bool:
        try:
            open_version(session, get_bucket(session, TENANT, "photos"), key)
        except NotFoundError:
            return False
        return True

    return stand.look(look)


def check_invariants(stand: Stand) -> None:
    """Hold the rows against each other."""
    now = stand.look(lambda session: session.scalar(sa.select(utc_now(60))))
    assert now is not None
    found = stand.look(
        lambda session: [*review_breaches(session), *work_breaches(session, now, now)]
    )
    assert found == []
