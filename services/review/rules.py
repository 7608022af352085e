"""What the findings of a review's steps mean together. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from services.review.reviewers.finding import Finding, Outcome
from shared.catalog.review_policy import Decision, ReviewPolicy


class Judgement(NamedTuple):
    """A decision, why, and whether it may be used again for the same content.

    What a fail mode decided says nothing about the content, so it is not reusable.
    """

    decision: Decision
    reason: str
    is_reusable: bool


def judge(findings: Iterable[Finding], policy: ReviewPolicy) -> Judgement:
    """Weigh the findings: one rejection rejects, then failures, then doubts; else it passes."""
    by_outcome: dict[Outcome, Finding] = {}
    for finding in findings:
        by_outcome.setdefault(finding.outcome, finding)
    if rejected := by_outcome.get(Outcome.REJECT):
        return Judgement(Decision.REJECT, sentence(rejected), is_reusable=True)
    doubtful = by_outcome.get(Outcome.DOUBTFUL)
    if failed := by_outcome.get(Outcome.ERROR):
        # Letting through what failed does not let through what another step doubts.
        decision = policy.when_failed
        if doubtful and decision is Decision.PASS:
            decision = Decision.HUMAN
        return Judgement(decision, sentence(failed), is_reusable=False)
    if doubtful:
        return Judgement(Decision.HUMAN, sentence(doubtful), is_reusable=True)
    return Judgement(Decision.PASS, "", is_reusable=True)


def sentence(finding: Finding) -> str:
    """Return a finding as a reason for people."""
    return f"{finding.step}: {finding.detail}" if finding.detail else finding.step
