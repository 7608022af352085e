"""The reviewers that a policy may add behind the built-in steps, in the order that it lists them.

Pure data. What a verdict depends on is part of the policy version; how long is waited is not.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

#: Names of the steps that every policy has.
BUILT_IN_STEPS = ("size", "block_list", "declared_type", "keywords")
MAX_REVIEWERS = 8
MAX_YARA_CHARACTERS = 64 * 1024
#: Longest that an answer by callback may take.
MAX_DEADLINE_SECONDS = 30 * 86_400.0

StepName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]
Found = Literal["doubtful", "reject"]


class _Spec(BaseModel):
    """What all have: the step's name, and a word that is changed to have content judged anew."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: StepName
    edition: str = Field(default="", max_length=64)

    def facts(self) -> dict[str, Any]:
        """Return what a verdict depends on."""
        return self.model_dump(mode="json")


class WebhookSpec(_Spec):
    """A reviewer that a tenant runs elsewhere and has registered under `reviewer`.

    It answers at once, or by callback within `deadline_seconds`; meanwhile its status address, if
    it has one, is asked every `poll_seconds`.
    """

    kind: Literal["webhook"]
    reviewer: StepName
    deadline_seconds: float = Field(default=86_400.0, ge=1, le=MAX_DEADLINE_SECONDS)
    poll_seconds: float = Field(default=60.0, ge=1, le=86_400.0)

    def facts(self) -> dict[str, Any]:
        """Return what a verdict depends on."""
        return self.model_dump(mode="json", exclude={"deadline_seconds", "poll_seconds"})


class ClamavSpec(_Spec):
    """ClamAV, asked through the clamd of this deployment."""

    kind: Literal["clamav"]
    found: Found = "reject"


class YaraSpec(_Spec):
    """YARA rules; the first rule that matches decides. Larger content than this is an error."""

    kind: Literal["yara"]
    rules: str = Field(min_length=1, max_length=MAX_YARA_CHARACTERS)
    found: Found = "reject"
    max_bytes: int = Field(default=64 * 1024**2, ge=1, le=256 * 1024**2)


class ImageSpec(_Spec):
    """Looks at content that is declared as an image; anything else passes.

    It must decode and have at most `max_pixels`. A `classifier` (an entry point of the group
    `cloudblox.image_classifiers`) gives it a score from 0 to 1.
    """

    kind: Literal["image"]
    found: Found = "reject"
    max_bytes: int = Field(default=64 * 1024**2, ge=1, le=256 * 1024**2)
    max_pixels: int = Field(default=50_000_000, ge=1, le=200_000_000)
    classifier: str = Field(default="", max_length=64)
    doubtful_from: float = Field(default=0.5, ge=0, le=1)
    reject_from: float = Field(default=0.9, ge=0, le=1)


ReviewerSpec = Annotated[
    WebhookSpec | ClamavSpec | YaraSpec | ImageSpec, Field(discriminator="kind")
]


def check_names(specs: tuple[ReviewerSpec, ...]) -> tuple[ReviewerSpec, ...]:
    """Return the list if each of its steps has a name of its own. Raises ValueError."""
    names = [spec.name for spec in specs]
    for name in names:
        if name in BUILT_IN_STEPS:
            raise ValueError(f"{name!r} is a built-in step: give the reviewer another name")
        if names.count(name) > 1:
            raise ValueError(f"two reviewers have the name {name!r}")
    return specs
