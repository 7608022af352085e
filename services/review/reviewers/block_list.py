"""The SHA-256 block list."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from services.review.reviewers.finding import Facts, Finding, Outcome

STEP = "block_list"


def review(facts: Facts, *, blocked_sha256: AbstractSet[str]) -> Finding:
    """Reject content that is on the list."""
    if facts.sha256.lower() in blocked_sha256:
        return Finding(STEP, Outcome.REJECT, "the content is on the block list")
    return Finding(STEP, Outcome.PASS)
