"""What a reviewer is told and what it answers: plain values, passed between processes as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """What one step of a review found."""

    PASS = "pass"  # noqa: S105 - the outcome, not a secret
    REJECT = "reject"
    DOUBTFUL = "doubtful"
    #: The reviewer could not look now; the task tries again.
    RETRY = "retry"
    #: The reviewer cannot judge this content; the policy's fail mode decides.
    ERROR = "error"


#: Outcomes that stand once found: a later execution does not ask again.
SETTLED = frozenset({Outcome.PASS, Outcome.REJECT, Outcome.DOUBTFUL, Outcome.ERROR})


@dataclass(frozen=True, slots=True)
class Finding:
    """One step's outcome; `detail` is a short sentence for people, without the content itself."""

    step: str
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the content before reading it."""

    size: int
    sha256: str
    content_type: str


def severity_outcome(severity: str) -> Outcome:
    """Turn a policy's word for a finding (ignore, doubtful, reject) into an outcome."""
    return {"doubtful": Outcome.DOUBTFUL, "reject": Outcome.REJECT}.get(severity, Outcome.PASS)
