"""Policies that name reviewers: which are refused, and what a policy's version covers."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from shared.catalog.optional_reviewers import OptionalReviewers
from shared.catalog.review_policy import ReviewPolicy
from shared.core.errors import InvalidError

RULES = "rule a { condition: true }"
WEBHOOK = {"kind": "webhook", "name": "far", "reviewer": "elsewhere"}
CLAMAV = {"kind": "clamav", "name": "virus"}
YARA = {"kind": "yara", "name": "rules", "rules": RULES}
IMAGE = {"kind": "image", "name": "picture"}
ALL_HERE = OptionalReviewers(clamav=True, yara=True, image=True, classifiers=frozenset({"toy"}))


def policy(*specs: dict[str, Any], **more: Any) -> ReviewPolicy:
    return ReviewPolicy.model_validate({"reviewers": list(specs), **more})


def test_what_is_here_may_be_named() -> None:
    ALL_HERE.check(policy(WEBHOOK, CLAMAV, YARA, {**IMAGE, "classifier": "toy"}))
    OptionalReviewers().check(policy(WEBHOOK))


@pytest.mark.parametrize(
    ("spec", "here", "code"),
    [
        (CLAMAV, OptionalReviewers(), "reviewer_absent"),
        (YARA, OptionalReviewers(), "reviewer_absent"),
        (IMAGE, OptionalReviewers(), "reviewer_absent"),
        ({**IMAGE, "classifier": "other"}, ALL_HERE, "reviewer_absent"),
        ({**YARA, "rules": "rule {"}, ALL_HERE, "yara_rules_invalid"),
        ({**YARA, "rules": 'include "other"'}, ALL_HERE, "yara_rules_invalid"),
    ],
)
def test_what_is_not_here_may_not(spec: dict[str, Any], here: OptionalReviewers, code: str) -> None:
    with pytest.raises(InvalidError) as caught:
        here.check(policy(spec))
    assert caught.value.code == code
    assert spec["name"] in str(caught.value)


@pytest.mark.parametrize(
    "specs",
    [
        [{"kind": "oracle", "name": "x"}],
        [{**CLAMAV, "name": "size"}],
        [CLAMAV, {**YARA, "name": "virus"}],
        [{**CLAMAV, "name": "Large"}],
        [{**CLAMAV, "found": "pass"}],
        [{**WEBHOOK, "deadline_seconds": 0}],
        [{**WEBHOOK, "deadline_seconds": 1e12}],
        [{**WEBHOOK, "url": "http://example.com"}],
        [{**CLAMAV, "name": f"virus{n}"} for n in range(9)],
    ],
)
def test_lists_that_cannot_be_right(specs: list[dict[str, Any]]) -> None:
    with pytest.raises(ValidationError):
        policy(*specs)


def test_policy_version_follows_what_is_asked_and_not_how_long() -> None:
    plain = policy(WEBHOOK, CLAMAV)
    patient = policy({**WEBHOOK, "deadline_seconds": 9, "poll_seconds": 2}, CLAMAV)
    assert patient.version == plain.version
    others = [
        policy(),
        policy(CLAMAV, WEBHOOK),
        policy({**WEBHOOK, "edition": "2"}, CLAMAV),
        policy({**WEBHOOK, "reviewer": "other"}, CLAMAV),
        policy(WEBHOOK, {**CLAMAV, "found": "doubtful"}),
        policy(WEBHOOK, YARA),
    ]
    assert len({one.version for one in [plain, *others]}) == len(others) + 1


def test_policy_with_reviewers_survives_json_and_binds_the_declared_type() -> None:
    listed = policy(WEBHOOK, CLAMAV, YARA, IMAGE, type_mismatch="ignore")
    assert ReviewPolicy.model_validate(listed.model_dump(mode="json")) == listed
    assert listed.declared_key("Text/Plain; charset=x") == "text/plain"
