"""The kinds of reviewing again."""

from __future__ import annotations

from typing import NamedTuple

from shared.catalog.context import Catalogue
from shared.catalog.payloads import REVIEW_AGAIN, REVIEW_RECHECK, CheckReview, ReviewAgain
from shared.catalog.rereviews.hooks import RecheckHooks, RunHooks
from shared.outbox.kinds import Kind
from shared.outbox.policy import RetryPolicy


class RereviewKinds(NamedTuple):
    """The run over a bucket, and the review of one version of it."""

    again: Kind[ReviewAgain]
    recheck: Kind[CheckReview]


def rereview_kinds(catalogue: Catalogue, retry: RetryPolicy, limit_seconds: float) -> RereviewKinds:
    """Return the kinds with their hooks."""
    run, recheck = RunHooks(), RecheckHooks(catalogue)
    return RereviewKinds(
        again=Kind(
            name=REVIEW_AGAIN,
            payload=ReviewAgain,
            retry=retry,
            time_limit_seconds=limit_seconds,
            locks=run.lock,
            on_end=run.on_end,
            on_retry=run.on_retry,
            events=True,
        ),
        recheck=Kind(
            name=REVIEW_RECHECK,
            payload=CheckReview,
            retry=retry,
            time_limit_seconds=limit_seconds,
            locks=recheck.lock,
            on_end=recheck.on_end,
            on_retry=recheck.on_retry,
            events=True,
        ),
    )
