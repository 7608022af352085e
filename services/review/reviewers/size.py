"""Size limits."""

from __future__ import annotations

from services.review.reviewers.finding import Facts, Finding, Outcome

STEP = "size"


def review(facts: Facts, *, min_bytes: int, max_bytes: int | None) -> Finding:
    """Reject content that is smaller or larger than the policy allows; the limits are inclusive."""
    if facts.size < min_bytes:
        return Finding(STEP, Outcome.REJECT, f"{facts.size} bytes, at least {min_bytes} wanted")
    if max_bytes is not None and facts.size > max_bytes:
        return Finding(STEP, Outcome.REJECT, f"{facts.size} bytes, at most {max_bytes} allowed")
    return Finding(STEP, Outcome.PASS)
