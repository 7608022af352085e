"""Findings weighed together, and what a policy version covers."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from services.review.reviewers.finding import Finding, Outcome
from services.review.rules import judge
from shared.catalog.review_policy import Decision, ReviewPolicy


def findings(*outcomes: Outcome) -> list[Finding]:
    return [Finding(f"step{n}", outcome, "why") for n, outcome in enumerate(outcomes)]


@pytest.mark.parametrize(
    ("outcomes", "fail_mode", "decision", "is_reusable"),
    [
        ([Outcome.PASS, Outcome.PASS], "closed", Decision.PASS, True),
        ([], "closed", Decision.PASS, True),
        ([Outcome.PASS, Outcome.REJECT], "open", Decision.REJECT, True),
        ([Outcome.ERROR, Outcome.REJECT], "open", Decision.REJECT, True),
        ([Outcome.PASS, Outcome.DOUBTFUL], "open", Decision.HUMAN, True),
        ([Outcome.ERROR], "closed", Decision.REJECT, False),
        ([Outcome.ERROR], "open", Decision.PASS, False),
        ([Outcome.ERROR], "human", Decision.HUMAN, False),
        ([Outcome.DOUBTFUL, Outcome.ERROR], "open", Decision.HUMAN, False),
        ([Outcome.DOUBTFUL, Outcome.ERROR], "closed", Decision.REJECT, False),
    ],
)
def test_judge(
    outcomes: list[Outcome], fail_mode: str, decision: Decision, is_reusable: bool
) -> None:
    policy = ReviewPolicy.model_validate({"fail_mode": fail_mode})
    judgement = judge(findings(*outcomes), policy)
    assert (judgement.decision, judgement.is_reusable) == (decision, is_reusable)
    assert decision is Decision.PASS or judgement.reason


@pytest.mark.parametrize(
    ("fail_mode", "decision"),
    [("closed", Decision.REJECT), ("open", Decision.PASS), ("human", Decision.REJECT)],
)
def test_undecided_in_time(fail_mode: str, decision: Decision) -> None:
    assert ReviewPolicy.model_validate({"fail_mode": fail_mode}).when_undecided is decision


def test_policy_version_follows_what_is_judged() -> None:
    plain = ReviewPolicy()
    assert ReviewPolicy(fail_mode="open", human_seconds=1).version == plain.version
    assert ReviewPolicy(reject_keywords=frozenset({"A", "b"})).version == (
        ReviewPolicy(reject_keywords=frozenset({"B", "a"})).version
    )
    others = [
        ReviewPolicy(max_bytes=1),
        ReviewPolicy(min_bytes=1),
        ReviewPolicy(type_mismatch="doubtful"),
        ReviewPolicy(blocked_sha256=frozenset({"a" * 64})),
        ReviewPolicy(reject_keywords=frozenset({"a"})),
        ReviewPolicy(doubtful_keywords=frozenset({"a"})),
    ]
    assert len({policy.version for policy in [plain, *others]}) == len(others) + 1


def test_policy_survives_json() -> None:
    policy = ReviewPolicy(
        fail_mode="human", blocked_sha256=frozenset({"AB" * 32}), reject_keywords=frozenset({"x"})
    )
    again = ReviewPolicy.model_validate_json(policy.model_dump_json())
    assert again == policy
    assert again.blocked_sha256 == {"ab" * 32}


def test_policy_binds_the_declared_type_where_it_is_judged() -> None:
    assert ReviewPolicy().declared_key("Text/Plain; charset=x") == "text/plain"
    assert ReviewPolicy(type_mismatch="ignore").declared_key("text/plain") == ""


@pytest.mark.parametrize(
    "bad",
    [
        {"blocked_sha256": ["abc"]},
        {"fail_mode": "maybe"},
        {"max_bytes": -1},
        {"reject_keywords": [""]},
        {"reject_keywords": ["x" * 200]},
        {"unknown": 1},
    ],
)
def test_policy_refuses_nonsense(bad: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ReviewPolicy.model_validate(bad)
