"""A bucket whose policy asks a reviewer elsewhere, and callbacks as the API writes them."""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa

from shared.catalog.models import ReviewStep, utc_now
from shared.catalog.puts import PutAnswer
from shared.catalog.review_callbacks import CallbackAnswer, accept_callback
from shared.catalog.webhook_reviewers import put_reviewer
from tests.support.handlers import TENANT, Stand
from tests.support.reviewer import Reviewer

GOOD = b"a harmless text"


def register(stand: Stand, reviewer: Reviewer, *, has_status: bool = False) -> None:
    """Register the reviewer as `elsewhere`."""
    stand.db.run_session(
        lambda session: put_reviewer(
            session,
            TENANT,
            "elsewhere",
            url=reviewer.url,
            status_url=reviewer.status_url if has_status else None,
            secrets=reviewer.secrets,
            box=stand.secrets,
        )
    )


def asking_bucket(stand: Stand, reviewer: Reviewer, name: str = "asked", **policy: Any) -> int:
    """Make a bucket whose policy asks it, after the built-in steps."""
    has_status = policy.pop("has_status", False)
    spec = {"kind": "webhook", "name": "far", "reviewer": "elsewhere"}
    spec |= policy.pop("spec", {})
    bucket = stand.bucket(name, reviewers=[spec], **policy)
    register(stand, reviewer, has_status=has_status)
    return bucket


def step_of(stand: Stand, put: PutAnswer, name: str = "far") -> ReviewStep:
    """Return the row of the step that waits."""
    review_id = stand.review_of(put.version_id).id
    return stand.look(
        lambda session: session.scalars(
            sa.select(ReviewStep).where(ReviewStep.review_id == review_id, ReviewStep.step == name)
        ).one()
    )


def call_back(
    stand: Stand,
    reviewer: Reviewer,
    put: PutAnswer,
    document: Any,
    *,
    message_id: str = "msg-1",
    age_seconds: float = 0.0,
) -> CallbackAnswer:
    """Send a signed answer for the step."""
    step_id = step_of(stand, put).id
    headers, body = reviewer.message(
        document, step_id=step_id, message_id=message_id, age_seconds=age_seconds
    )
    return stand.db.run_session(
        lambda session: accept_callback(
            session,
            stand.catalogue,
            step_id,
            headers=headers,
            body=body,
            box=stand.secrets,
            now=time.time(),
        )
    )


def end_wait(stand: Stand) -> None:
    """Let the time of every step that waits be over."""
    with stand.db.engine.begin() as connection:
        connection.execute(sa.update(ReviewStep).values(deadline_at=utc_now(-1)))


def states(stand: Stand, version_id: int) -> tuple[str, str]:
    """Return the states of a version's review and of the version."""
    return stand.review_of(version_id).state, stand.version(version_id).state
