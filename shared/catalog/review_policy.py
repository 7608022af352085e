"""What a bucket demands of new content before it is stored, and what happens when reviewers fail.

Pure data: the request freezes it into the review, the review service carries it out.
"""

from __future__ import annotations

import hashlib
import json
import re
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from shared.catalog.reviewer_specs import MAX_REVIEWERS, ReviewerSpec, check_names

#: Part of every policy version; raise it when a built-in reviewer judges differently than before,
#: so that old verdicts are not reused.
REVIEWERS_VERSION = 2

#: A wait that no database's clock could hold would be one without an end.
MAX_WAIT_SECONDS = 10 * 366 * 86_400.0
MAX_BYTES = 2**63 - 1

#: Longest keyword; the scan keeps this much text between two chunks.
MAX_KEYWORD_CHARACTERS = 128

FailMode = Literal["closed", "open", "human"]
Severity = Literal["ignore", "doubtful", "reject"]
OnChange = Literal["rereview", "leave"]
Keyword = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_KEYWORD_CHARACTERS),
]
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


class Decision(StrEnum):
    """Where a review goes; `human` leaves it to a person."""

    PASS = "pass"  # noqa: S105 - an outcome, not a secret
    REJECT = "reject"
    HUMAN = "human"


class ReviewPolicy(BaseModel):
    """The steps of a review and their severity: the built-in ones, then `reviewers` in order.

    `fail_mode` says what a reviewer that fails for good means: `closed` rejects, `open` lets
    through, `human` leaves it to a person. Doubtful findings always wait for a person; one who
    does not decide within `human_seconds` leaves the content rejected (`open`: let through).
    `on_change` says what becomes of content that came before these rules: it is reviewed again, or
    left as it is.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    fail_mode: FailMode = "closed"
    #: Declared content type against the one that the first bytes show.
    type_mismatch: Severity = "reject"
    min_bytes: int = Field(default=0, ge=0, le=MAX_BYTES)
    max_bytes: int | None = Field(default=None, ge=0, le=MAX_BYTES)
    blocked_sha256: frozenset[str] = Field(default=frozenset(), max_length=10_000)
    #: Looked for in text, without regard to case. Each word costs a pass over the content.
    reject_keywords: frozenset[Keyword] = Field(default=frozenset(), max_length=500)
    doubtful_keywords: frozenset[Keyword] = Field(default=frozenset(), max_length=500)
    #: Asked one after the other, the cheap ones first, until one rejects.
    reviewers: tuple[ReviewerSpec, ...] = Field(default=(), max_length=MAX_REVIEWERS)
    human_seconds: float = Field(default=7 * 86_400.0, gt=0, le=MAX_WAIT_SECONDS)
    #: How long rejected bytes are kept in quarantine.
    quarantine_seconds: float = Field(default=30 * 86_400.0, ge=0, le=MAX_WAIT_SECONDS)
    #: What a new policy version means for what is there already.
    on_change: OnChange = "rereview"

    @field_validator("blocked_sha256", mode="before")
    @classmethod
    def _hex(cls, values: object) -> object:
        if not isinstance(values, (list, tuple, set, frozenset)):
            return values
        folded = frozenset(str(value).strip().lower() for value in values)
        for value in folded:
            if not _SHA256.match(value):
                raise ValueError(f"not a SHA-256 in hexadecimal: {value[:70]!r}")
        return folded

    @field_validator("reviewers")
    @classmethod
    def _named(cls, specs: tuple[ReviewerSpec, ...]) -> tuple[ReviewerSpec, ...]:
        return check_names(specs)

    @property
    def reads_content(self) -> bool:
        """Tell whether any step needs more of the content than its first bytes."""
        return bool(self.reject_keywords or self.doubtful_keywords)

    @property
    def when_failed(self) -> Decision:
        """What is decided when reviewers fail for good."""
        return {"closed": Decision.REJECT, "open": Decision.PASS, "human": Decision.HUMAN}[
            self.fail_mode
        ]

    @property
    def when_undecided(self) -> Decision:
        """What is decided when no person decided in time."""
        return Decision.PASS if self.fail_mode == "open" else Decision.REJECT

    @property
    def version(self) -> str:
        """The policy version that verdicts are bound to: 32 hexadecimal digits.

        It covers everything that a verdict depends on besides the content and its declared type.
        What only concerns failures and waiting (`fail_mode`, times) leaves verdicts valid.
        """
        facts: dict[str, Any] = {
            "reviewers": REVIEWERS_VERSION,
            "type_mismatch": self.type_mismatch,
            "bytes": [self.min_bytes, self.max_bytes],
            "blocked": sorted(self.blocked_sha256),
            "reject": sorted(word.casefold() for word in self.reject_keywords),
            "doubtful": sorted(word.casefold() for word in self.doubtful_keywords),
        }
        if self.reviewers:
            facts["listed"] = [spec.facts() for spec in self.reviewers]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]

    def declared_key(self, content_type: str) -> str:
        """Return what of a declared type a verdict is bound to; empty where it is not judged.

        The same bytes may pass as one type and not as another.
        """
        is_judged = self.type_mismatch != "ignore" or self.reviewers
        return essence(content_type) if is_judged else ""


def essence(content_type: str) -> str:
    """Return a content type without parameters, in small ASCII letters: ``text/plain``."""
    plain = content_type.partition(";")[0].strip().lower()
    return plain.encode("ascii", "backslashreplace").decode("ascii")[:255]
