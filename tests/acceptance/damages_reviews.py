"""Damages of reviews that wait for others or look again that `blox check` must see."""

from __future__ import annotations

from typing import Any

from shared.catalog.models import Review, ReviewStep, Version
from tests.acceptance.damages import PAST, Damage
from tests.acceptance.still import Still

_DEADLINE = "every wait has a deadline"


def _step(still: Still, **values: Any) -> None:
    still.add(
        ReviewStep,
        review_id=still.one(Review.id, Review.version_id == still.cast.letter),
        step="far",
        kind="webhook",
        created_at=PAST,
        **values,
    )


def _waits_for_ever(still: Still) -> None:
    _step(still, outcome="waiting", ask_id="ask", asked_at=PAST)


def _nobody_answered(still: Still) -> None:
    _step(still, outcome="pass", ask_id="ask", asked_at=PAST, ended_at=PAST)


def _doubtful_for_ever(still: Still) -> None:
    review_id = still.one(Review.id, Review.version_id == still.cast.doubtful)
    still.change(Review, review_id, deadline_at=None)


def _again(still: Still, state: str) -> None:
    version_id = still.cast.letter
    still.add(
        Review,
        tenant_id="default",
        bucket_id=still.one(Version.bucket_id, Version.id == version_id),
        version_id=version_id,
        blob_id=still.one(Version.blob_id, Version.id == version_id),
        sha256=still.one(Version.sha256, Version.id == version_id),
        policy={},
        policy_version="x",
        state=state,
        created_at=PAST,
        run_id=1,
        task_id=999_999,
    )


def _again_alone(still: Still) -> None:
    _again(still, "open")


def _bad_but_served(still: Still) -> None:
    _again(still, "rejected")


REVIEW_DAMAGES = (
    Damage("waits for ever", _waits_for_ever, _DEADLINE, "waiting without an end"),
    Damage("doubtful for ever", _doubtful_for_ever, _DEADLINE, "doubtful without an end"),
    Damage("by nobody", _nobody_answered, "answers have a sender", "nobody said so"),
    Damage(
        "again alone", _again_alone, "unfinished rows have their task", "task 999999 is not there"
    ),
    Damage("bad but served", _bad_but_served, "only what passed is readable", "review is rejected"),
)
