"""Looks which optional reviewers this installation has. Nothing of them is imported for it."""

from __future__ import annotations

from importlib.metadata import entry_points
from importlib.util import find_spec

from shared.catalog.optional_reviewers import OptionalReviewers
from shared.runtime.settings import Settings

#: Entry points of image classifiers.
CLASSIFIERS = "cloudblox.image_classifiers"


def optional_reviewers(settings: Settings) -> OptionalReviewers:
    """Return what is installed and configured."""
    return OptionalReviewers(
        clamav=bool(settings.review.clamd),
        yara=find_spec("yara") is not None,
        image=find_spec("PIL") is not None,
        classifiers=frozenset(point.name for point in entry_points(group=CLASSIFIERS)),
    )
