"""Judges one version: steps from cheap to dear, then the one commit that lets it pass or not.

What a reviewer said is kept at once, so that an execution that was cut short is gone on from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from services.review import rules
from services.review.reviewers import block_list, declared, keywords, size
from services.review.reviewers.finding import SETTLED, Facts, Finding, Outcome
from services.review.sandbox import SandboxFailed, SandboxLimits, review_content
from shared.catalog import fenced
from shared.catalog.context import Catalogue
from shared.catalog.hooks import FAIL_MODE
from shared.catalog.payloads import CheckReview
from shared.catalog.review_policy import Decision
from shared.catalog.reviewing import Case, ReviewCommit, Step, read_case, record_steps
from shared.catalog.rulings import BY_REVIEWERS, BY_VERDICT, Ruling
from shared.core.clock import Deadline
from shared.core.errors import PermanentError
from shared.core.failpoints import failpoint
from shared.outbox import Execution
from shared.outbox.completion import Completion
from shared.outbox.db import Database
from shared.storage.errors import SourceError, SourceUnavailable
from shared.storage.source import ChannelSource
from shared.storage.staging import Staging

#: Seconds that a clean-up may take whose failure is harmless.
TIDY_SECONDS = 5.0

_log = structlog.get_logger("review")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deps:
    """What the handler works with."""

    db: Database
    catalogue: Catalogue
    staging: Staging
    limits: SandboxLimits = field(default_factory=SandboxLimits)


def check(execution: Execution, payload: CheckReview, deps: Deps) -> None:
    """Review one version and commit the decision, which completes the task.

    An earlier verdict on the same content under the same rules is used again. Reviewers that cannot
    look now are asked again by the retry policy; when that is spent, the kind's hook decides by the
    policy's fail mode.
    """
    failpoint("review.claimed")
    case = deps.db.run_session(lambda session: read_case(session, payload), read_only=True)
    if case is None:
        return
    if case.verdict is not None:
        ruling = Ruling(case.verdict, by=BY_VERDICT, reason=case.verdict_reason)
    else:
        judgement = rules.judge(_findings(execution, case, deps), case.policy)
        ruling = Ruling(
            judgement.decision,
            by=BY_REVIEWERS if judgement.is_reusable else FAIL_MODE,
            reason=judgement.reason,
            is_reusable=judgement.is_reusable,
        )
    _commit(execution, case, ruling, deps)
    failpoint("review.after_commit")


def _findings(execution: Execution, case: Case, deps: Deps) -> list[Finding]:
    """Run the steps that have no answer yet, until one rejects."""
    facts = Facts(size=case.size_bytes, sha256=case.sha256, content_type=case.content_type)
    policy = case.policy
    findings = [
        size.review(facts, min_bytes=policy.min_bytes, max_bytes=policy.max_bytes),
        block_list.review(facts, blocked_sha256=policy.blocked_sha256),
    ]
    _record(case, findings, deps)
    if any(finding.outcome is Outcome.REJECT for finding in findings):
        return findings
    findings += _content_findings(execution, case, facts, deps)
    failpoint("review.after_steps")
    return findings


def _content_findings(
    execution: Execution, case: Case, facts: Facts, deps: Deps
) -> Sequence[Finding]:
    """Return what the steps say that look at the bytes."""
    policy = case.policy
    steps = [declared.STEP, *([keywords.STEP] if policy.reads_content else [])]
    known = [_finding(case.steps[step]) for step in steps if step in case.steps]
    known = [finding for finding in known if finding.outcome in SETTLED]
    if len(known) == len(steps) or any(one.outcome is Outcome.REJECT for one in known):
        return known
    if policy.type_mismatch == "ignore" and not policy.reads_content:
        return []
    try:
        findings = _run_reviewers(execution, case, facts, deps)
    except SandboxFailed as error:
        _log.warning("reviewer_failed", review_id=case.review_id, error=str(error))
        findings = [Finding(steps[-1], Outcome.ERROR, str(error))]
    except SourceUnavailable as error:
        _record(case, [Finding(steps[-1], Outcome.RETRY, str(error))], deps)
        raise
    _record(case, findings, deps)
    return findings


def _run_reviewers(execution: Execution, case: Case, facts: Facts, deps: Deps) -> list[Finding]:
    policy = case.policy
    order = {
        "facts": {
            "size": facts.size,
            "sha256": facts.sha256,
            "content_type": facts.content_type,
        },
        "type_mismatch": policy.type_mismatch,
        "reject": sorted(policy.reject_keywords),
        "doubtful": sorted(policy.doubtful_keywords),
    }
    if case.staging_key is None:
        raise PermanentError(
            "the version names no staging file",
            code="staging_missing",
            version_id=case.version_id,
        )
    source = ChannelSource(deps.staging, case.staging_key)
    try:
        with source.open(0, facts.size, execution.deadline) as content:
            return review_content(
                order,
                content,
                limits=deps.limits,
                deadline=execution.deadline,
                check=execution.check,
            )
    except SourceError:
        # Gone because the version was superseded meanwhile? Then that is how the task ends.
        payload = CheckReview(version_id=case.version_id, blob_id=0, review_id=case.review_id)
        deps.db.run_session(lambda session: read_case(session, payload), read_only=True)
        raise


def _commit(execution: Execution, case: Case, ruling: Ruling, deps: Deps) -> None:
    commit = ReviewCommit(deps.catalogue, case, task_id=execution.task.id)

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


def _record(case: Case, findings: Sequence[Finding], deps: Deps) -> None:
    """Keep what was said; it is a fact of the content, whoever found it."""
    new = [
        Step(finding.step, finding.outcome.value, finding.detail)
        for finding in findings
        if case.steps.get(finding.step) != Step(finding.step, finding.outcome.value, finding.detail)
    ]
    if new:
        deps.db.run_session(lambda session: record_steps(session, case.review_id, new))


def _finding(step: Step) -> Finding:
    return Finding(step.name, Outcome(step.outcome), step.detail)
