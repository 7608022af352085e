"""A bucket whose content is reviewed again under other rules."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from shared.catalog.buckets import BucketSpec, get_bucket, put_bucket
from shared.catalog.invariants.rereviews import rereview_breaches
from shared.catalog.invariants.reviews import review_breaches
from shared.catalog.invariants.work import work_breaches
from shared.catalog.models import Review, ReviewRun, Version, utc_now
from shared.catalog.puts import PutAnswer
from shared.catalog.reads import open_version
from shared.catalog.rereviews import runs, starting
from shared.catalog.review_policy import ReviewPolicy
from shared.core.errors import NotFoundError
from tests.integration.handlers.sweeping import passes, sweeper
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
        lambda session: starting.start_run(session, stand.catalogue, TENANT, "photos", by="ann")
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


def change(stand: Stand, **policy: Any) -> list[ReviewRun]:
    """Change the bucket's rules as the API does; returns all its runs, the newest first."""

    def write(session: Any) -> list[ReviewRun]:
        review = ReviewPolicy.model_validate(policy) if policy else None
        spec = BucketSpec(channels=["a", "b"], review_policy=review)
        bucket = put_bucket(session, TENANT, "photos", spec, catalogue=stand.catalogue).bucket
        return list(runs.list_runs(session, bucket.id, limit=10))

    return stand.db.run_session(write)


def end_quarantines(stand: Stand) -> None:
    """Let the time of all quarantines be over, and what is in them go."""
    with stand.db.engine.begin() as connection:
        connection.execute(
            sa.update(Version).where(Version.state == "blocked").values(staging_until=utc_now(-1))
        )
    passes(sweeper(stand))
    stand.work_all("delete")


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
        lambda session: [
            *review_breaches(session),
            *rereview_breaches(session, now),
            *work_breaches(session, now, now),
        ]
    )
    assert found == []
