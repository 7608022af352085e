"""Judges one version: steps from cheap to dear, then the one commit that lets it pass or not."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from services.review import rules
from services.review.deps import Deps
from services.review.examining import examine
from shared.catalog import fenced
from shared.catalog.hooks import FAIL_MODE
from shared.catalog.payloads import CheckReview
from shared.catalog.rereviews.rechecking import RecheckCommit, read_recheck
from shared.catalog.review_cases import Case, read_case
from shared.catalog.review_policy import Decision
from shared.catalog.reviewing import ReviewCommit
from shared.catalog.rulings import BY_REVIEWERS, BY_VERDICT, Ruling
from shared.core.clock import Deadline
from shared.core.failpoints import failpoint
from shared.outbox import Execution, Snooze
from shared.outbox.completion import Completion

__all__ = ["Deps", "check", "recheck"]

#: Seconds that a clean-up may take whose failure is harmless.
TIDY_SECONDS = 5.0

_log = structlog.get_logger("review")


def check(execution: Execution, payload: CheckReview, deps: Deps) -> Snooze | None:
    """Review one version and commit the decision, which completes the task.

    An earlier verdict on the same content under the same rules is used again. A reviewer that
    answers later snoozes the task. Reviewers that cannot look now are asked again by the retry
    policy; when that is spent, the kind's hook decides by the policy's fail mode.
    """
    failpoint("review.claimed")
    case = deps.db.run_session(lambda session: read_case(session, payload), read_only=True)
    return None if case is None else _judge(execution, case, deps)


def recheck(execution: Execution, payload: CheckReview, deps: Deps) -> Snooze | None:
    """Review a version that has passed before; it is served until it is found to be bad."""
    failpoint("review.claimed")
    case = deps.db.run_session(lambda session: read_recheck(session, payload), read_only=True)
    return None if case is None else _judge(execution, case, deps)


def _judge(execution: Execution, case: Case, deps: Deps) -> Snooze | None:
    if case.verdict is not None:
        ruling = Ruling(case.verdict, by=BY_VERDICT, reason=case.verdict_reason)
    else:
        found = examine(execution, case, deps)
        if isinstance(found, Snooze):
            return found
        failpoint("review.after_steps")
        judgement = rules.judge(found, case.policy)
        ruling = Ruling(
            judgement.decision,
            by=BY_REVIEWERS if judgement.is_reusable else FAIL_MODE,
            reason=judgement.reason,
            is_reusable=judgement.is_reusable,
        )
    _commit(execution, case, ruling, deps)
    failpoint("review.after_commit")
    return None


def _commit(execution: Execution, case: Case, ruling: Ruling, deps: Deps) -> None:
    kind = RecheckCommit if case.is_again else ReviewCommit
    commit = kind(deps.catalogue, case, task_id=execution.task.id)

    def write(tx: Completion) -> None:
        commit.apply(tx.session, ruling, trace_parent=execution.task.trace_parent)
        tx.result = {
            "decision": ruling.decision.value,
            "by": ruling.by,
            "reason": ruling.reason,
            "waits_for_person": ruling.decision is Decision.HUMAN,
        }

    failpoint("review.before_commit")
    fenced.complete(execution, deps.db, lock=commit.lock, body=write)
    _tidy(commit.released, deps)


def _tidy(released: Sequence[str], deps: Deps) -> None:
    """Remove the bytes of older versions that this one superseded; the cleanup finds the rest."""
    deadline = Deadline(TIDY_SECONDS)
    for key in released:
        try:
            deps.staging.remove(key, deadline=deadline)
        except Exception as error:
            _log.info("staging_left_to_cleanup", key=key, error=str(error))
