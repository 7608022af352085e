"""The steps of one review in their order, each kept as soon as it has an answer.

An execution that was cut short is gone on from at the first step without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import structlog

from services.review import asking, local
from services.review.deps import Deps
from services.review.reviewers.finding import SETTLED, Finding, Outcome
from services.review.sandbox import SandboxFailed
from shared.catalog.review_cases import Case, Step, record_steps
from shared.catalog.review_policy import ReviewPolicy
from shared.catalog.reviewer_specs import ClamavSpec, ReviewerSpec, WebhookSpec
from shared.core.errors import TransientError
from shared.core.failpoints import failpoint
from shared.outbox import Execution, Snooze

_log = structlog.get_logger("review")


@dataclass(frozen=True, slots=True)
class _Stage:
    """Steps that are answered together. `run` answers them, or says when to come back."""

    names: tuple[str, ...]
    run: Callable[[], Sequence[Finding] | Snooze]
    kind: str = "built_in"


def examine(execution: Execution, case: Case, deps: Deps) -> list[Finding] | Snooze:
    """Run what has no answer yet, until one rejects; a Snooze waits for a reviewer elsewhere.

    A step that could not look now is kept as `retry`, and what it raised comes out.
    """
    findings: list[Finding] = []
    for stage in _stages(execution, case, deps):
        found: Sequence[Finding] | Snooze | None = _known(case, stage)
        if found is None:
            found = _run(case, stage, deps)
            failpoint("review.after_step")
        if isinstance(found, Snooze):
            return found
        findings += found
        if _is_enough(found, case.policy):
            break
    return findings


def _stages(execution: Execution, case: Case, deps: Deps) -> Iterator[_Stage]:
    yield _Stage(local.FACTS, lambda: local.review_facts(case))
    if names := local.content_steps(case.policy):
        yield _Stage(names, lambda: local.review_content(execution, case, deps))
    for spec in case.policy.reviewers:
        yield _listed(execution, case, spec, deps)


def _listed(execution: Execution, case: Case, spec: ReviewerSpec, deps: Deps) -> _Stage:
    def run() -> Sequence[Finding] | Snooze:
        if isinstance(spec, WebhookSpec):
            answer = asking.ask(execution, case, spec, deps)
            return answer if isinstance(answer, Snooze) else [answer]
        if isinstance(spec, ClamavSpec):
            return [local.ask_clamd(execution, case, spec, deps)]
        return [local.review_in_sandbox(execution, case, spec, deps)]

    return _Stage((spec.name,), run, spec.kind)


def _known(case: Case, stage: _Stage) -> list[Finding] | None:
    """Return what was said before, None when a step has no answer."""
    steps = [case.steps[name] for name in stage.names if name in case.steps]
    known = [
        Finding(step.name, Outcome(step.outcome), step.detail)
        for step in steps
        if step.outcome in SETTLED
    ]
    is_over = any(finding.outcome in (Outcome.REJECT, Outcome.ERROR) for finding in known)
    return known if is_over or len(known) == len(stage.names) else None


def _run(case: Case, stage: _Stage, deps: Deps) -> Sequence[Finding] | Snooze:
    try:
        found = stage.run()
    except SandboxFailed as error:
        _log.warning("reviewer_failed", review_id=case.review_id, error=str(error))
        found = [Finding(stage.names[-1], Outcome.ERROR, str(error))]
    except TransientError as error:
        if stage.kind != "webhook":
            _record(case, stage, [Finding(stage.names[-1], Outcome.RETRY, str(error))], deps)
        raise
    if not isinstance(found, Snooze) and stage.kind != "webhook":
        _record(case, stage, found, deps)
    return found


def _is_enough(found: Sequence[Finding], policy: ReviewPolicy) -> bool:
    """Tell whether nothing that comes later could change the decision."""
    outcomes = {finding.outcome for finding in found}
    return Outcome.REJECT in outcomes or (
        Outcome.ERROR in outcomes and policy.fail_mode == "closed"
    )


def _record(case: Case, stage: _Stage, findings: Sequence[Finding], deps: Deps) -> None:
    """Keep what was said; it is a fact of the content, whoever found it."""
    new = [Step(one.step, one.outcome.value, one.detail, stage.kind) for one in findings]
    deps.db.run_session(lambda session: record_steps(session, case.review_id, new))
