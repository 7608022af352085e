"""Which optional reviewers a deployment has: a policy that names another one is not saved.

The composition root looks; a worker looks again at each review.
"""

from __future__ import annotations

from dataclasses import dataclass

from shared.catalog.review_policy import ReviewPolicy
from shared.catalog.reviewer_specs import ClamavSpec, ImageSpec, ReviewerSpec, YaraSpec
from shared.core.errors import InvalidError


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionalReviewers:
    """What is there beside the built-in reviewers and webhooks."""

    clamav: bool = False
    yara: bool = False
    image: bool = False
    classifiers: frozenset[str] = frozenset()

    def why_absent(self, spec: ReviewerSpec) -> str | None:
        """Return a sentence when this reviewer is not here, None when it is."""
        if isinstance(spec, ClamavSpec) and not self.clamav:
            return "ClamAV is not here: set BLOX_REVIEW__CLAMD to the address of a clamd"
        if isinstance(spec, YaraSpec) and not self.yara:
            return "YARA is not here: install the package yara-python"
        if isinstance(spec, ImageSpec):
            if not self.image:
                return "the image reviewer is not here: install the package pillow"
            if spec.classifier and spec.classifier not in self.classifiers:
                return f"no image classifier {spec.classifier!r} is installed here"
        return None

    def check(self, policy: ReviewPolicy) -> None:
        """Raise InvalidError (`reviewer_absent`, `yara_rules_invalid`) unless all can be asked."""
        for spec in policy.reviewers:
            reason = self.why_absent(spec)
            if reason is not None:
                raise InvalidError(
                    f"reviewer {spec.name}: {reason}", code="reviewer_absent", reviewer=spec.name
                )
            if isinstance(spec, YaraSpec):
                _check_rules(spec)


def _check_rules(spec: YaraSpec) -> None:
    import yara

    try:
        yara.compile(source=spec.rules, includes=False)
    except yara.Error as error:
        raise InvalidError(
            f"reviewer {spec.name}: the rules cannot be compiled: {error}"[:500],
            code="yara_rules_invalid",
            reviewer=spec.name,
        ) from error
