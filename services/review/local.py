"""The reviewers of this deployment: by plain facts, in the sandbox, and by ClamAV's daemon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from services.review.content import open_content
from services.review.deps import Deps
from services.review.reviewers import block_list, clamd, declared, keywords, size
from services.review.reviewers.finding import Facts, Finding, Outcome
from services.review.sandbox import review_content as review_in_process
from shared.catalog.review_cases import Case
from shared.catalog.review_policy import ReviewPolicy
from shared.catalog.reviewer_specs import ClamavSpec, ImageSpec, YaraSpec
from shared.outbox import Execution

FACTS = (size.STEP, block_list.STEP)


def review_facts(case: Case) -> list[Finding]:
    """Judge by what is known without the bytes."""
    facts, policy = _facts(case), case.policy
    return [
        size.review(facts, min_bytes=policy.min_bytes, max_bytes=policy.max_bytes),
        block_list.review(facts, blocked_sha256=policy.blocked_sha256),
    ]


def content_steps(policy: ReviewPolicy) -> tuple[str, ...]:
    """Return the built-in steps that read the content, none when none is wanted."""
    if policy.reads_content:
        return (declared.STEP, keywords.STEP)
    return () if policy.type_mismatch == "ignore" else (declared.STEP,)


def review_content(execution: Execution, case: Case, deps: Deps) -> Sequence[Finding]:
    """Run the built-in steps that read the content. Raises SandboxFailed."""
    policy = case.policy
    return _in_sandbox(
        execution,
        case,
        deps,
        {
            "reviewer": "built_in",
            "type_mismatch": policy.type_mismatch,
            "reject": sorted(policy.reject_keywords),
            "doubtful": sorted(policy.doubtful_keywords),
        },
    )


def review_in_sandbox(
    execution: Execution, case: Case, spec: YaraSpec | ImageSpec, deps: Deps
) -> Finding:
    """Run one optional reviewer that reads the content. Raises SandboxFailed."""
    if spec.max_bytes < case.size_bytes:
        detail = f"{case.size_bytes} bytes, it looks at {spec.max_bytes} at most"
        return Finding(spec.name, Outcome.ERROR, detail)
    order = {"reviewer": spec.kind, "step": spec.name, "spec": spec.model_dump(mode="json")}
    (finding,) = _in_sandbox(execution, case, deps, order)
    return finding


def ask_clamd(execution: Execution, case: Case, spec: ClamavSpec, deps: Deps) -> Finding:
    """Let ClamAV look. Raises UnavailableError while it does not answer."""
    if not deps.clamd:
        return Finding(spec.name, Outcome.ERROR, "this deployment has no clamd")
    with open_content(execution, case, deps) as content:
        answer = clamd.scan(
            deps.clamd,
            content,
            deadline=execution.deadline.within(deps.limits.seconds),
            check=execution.check,
        )
    if answer.virus is not None:
        return Finding(spec.name, Outcome(spec.found), f"found {answer.virus}")
    if answer.error is not None:
        return Finding(spec.name, Outcome.ERROR, answer.error)
    return Finding(spec.name, Outcome.PASS)


def _in_sandbox(
    execution: Execution, case: Case, deps: Deps, order: dict[str, Any]
) -> list[Finding]:
    facts = {
        "size": case.size_bytes,
        "sha256": case.sha256,
        "content_type": case.content_type,
    }
    with open_content(execution, case, deps) as content:
        return review_in_process(
            {**order, "facts": facts},
            content,
            limits=deps.limits,
            deadline=execution.deadline,
            check=execution.check,
        )


def _facts(case: Case) -> Facts:
    return Facts(size=case.size_bytes, sha256=case.sha256, content_type=case.content_type)
