"""Damages of reviews that wait for others or look again that `blox check` must see."""

from __future__ import annotations

from typing import Any

from shared.catalog.models import BlobRef, Bucket, Review, ReviewRun, ReviewStep, Version
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


def _changed_rules(still: Still, **run: Any) -> None:
    """Let the reviewed bucket have other rules, and a run that is as said, or none."""
    bucket_id = still.one(Version.bucket_id, Version.id == still.cast.letter)
    still.change(Bucket, bucket_id, review_policy_version="0" * 32)
    if run:
        still.add(
            ReviewRun,
            tenant_id="default",
            bucket_id=bucket_id,
            policy={},
            policy_version="0" * 32,
            until_id=still.cast.copy,
            created_at=PAST,
            **run,
        )


def _nobody_reviews(still: Still) -> None:
    _changed_rules(still)


def _run_is_over(still: Still) -> None:
    _changed_rules(still, state="cancelled")


def _run_alone(still: Still) -> None:
    _changed_rules(still, state="running", task_id=999_999)


def _two_runs(still: Still) -> None:
    for _ in range(2):
        _changed_rules(still, state="running")


def _quarantine_lost(still: Still) -> None:
    still.change(Version, still.cast.blocked, staging_key=None)


def _quarantine_of_nobody(still: Still) -> None:
    still.add(
        BlobRef,
        blob_id=still.one(Version.blob_id, Version.id == still.cast.letter),
        holder_kind="quarantine",
        holder_id=still.cast.letter,
        created_at=PAST,
    )


_PRESENT = "what is readable has passed the present rules"

REVIEW_DAMAGES = (
    Damage("nobody reviews", _nobody_reviews, _PRESENT, "no run reviews them"),
    Damage("run is over", _run_is_over, _PRESENT, "is cancelled"),
    Damage("run alone", _run_alone, "unfinished rows have their task", "task 999999 is not there"),
    Damage("two runs", _two_runs, "a bucket has one run of re-reviews", "2 runs of re-reviews"),
    Damage("quarantine lost", _quarantine_lost, "what is held is there", "in quarantine, but"),
    Damage(
        "quarantine of nobody",
        _quarantine_of_nobody,
        "references have their holder",
        "of the quarantine of version",
    ),
    Damage("waits for ever", _waits_for_ever, _DEADLINE, "waiting without an end"),
    Damage("doubtful for ever", _doubtful_for_ever, _DEADLINE, "doubtful without an end"),
    Damage("by nobody", _nobody_answered, "answers have a sender", "nobody said so"),
    Damage(
        "again alone", _again_alone, "unfinished rows have their task", "task 999999 is not there"
    ),
    Damage("bad but served", _bad_but_served, "only what passed is readable", "review is rejected"),
)
