"""Rules and lifetimes as pure data."""

from __future__ import annotations

import datetime as dt

import pydantic
import pytest

from shared.catalog.lifecycle import MAX_DAYS, ExpiryRule, Lifecycle, Lifetime, earlier
from shared.core.errors import InvalidError

NOW = dt.datetime(2030, 1, 1)
DAY = dt.timedelta(days=1)


def test_earliest_rule_that_fits_counts() -> None:
    lifecycle = Lifecycle(
        rules=[
            ExpiryRule(prefix="logs/", after_days=7),
            ExpiryRule(prefix="logs/debug/", after_days=1),
            ExpiryRule(prefix="logs/d", after_seconds=86_400 * 3),
        ]
    )
    assert lifecycle.due("logs/a", NOW) == NOW + 7 * DAY
    assert lifecycle.due("logs/debug/a", NOW) == NOW + DAY
    assert lifecycle.due("logs/d", NOW) == NOW + 3 * DAY
    assert lifecycle.due("log", NOW) is None
    assert Lifecycle(rules=[ExpiryRule(after_days=1)]).due("", NOW) == NOW + DAY


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"after_days": 1, "after_seconds": 1},
        {"after_days": 0},
        {"after_days": MAX_DAYS + 1},
        {"after_seconds": 0},
        {"after_seconds": float("inf")},
        {"after_days": 1, "prefix": "x" * 1025},
        {"after_days": 1, "prefix": "\N{EURO SIGN}" * 400},
        {"after_days": 1, "other": 1},
    ],
)
def test_rules_that_are_none(rule: dict[str, object]) -> None:
    with pytest.raises(pydantic.ValidationError):
        ExpiryRule.model_validate(rule)


def test_revision_follows_the_rules() -> None:
    one, same = (Lifecycle(rules=[ExpiryRule(after_days=1)]) for _ in range(2))
    assert one.revision == same.revision
    assert one.revision != Lifecycle(rules=[ExpiryRule(after_days=2)]).revision
    assert Lifecycle.model_validate(one.model_dump(mode="json")).revision == one.revision


def test_lifetimes() -> None:
    assert Lifetime().end(NOW) is None
    assert Lifetime(at=NOW + DAY).end(NOW) == NOW + DAY
    assert Lifetime(seconds=60).end(NOW) == NOW + dt.timedelta(minutes=1)
    assert Lifetime(at=NOW - DAY, is_kept=True).end(NOW) == NOW - DAY
    for wrong in (
        Lifetime(at=NOW),
        Lifetime(at=NOW + DAY, seconds=1),
        Lifetime(seconds=0),
        Lifetime(seconds=float("nan")),
        Lifetime(seconds=1e300),
        Lifetime(at=dt.datetime(9999, 1, 1)),
    ):
        with pytest.raises(InvalidError):
            wrong.end(NOW)


def test_earlier_of_two() -> None:
    assert earlier(None, None) is None
    assert earlier(NOW, None) == earlier(None, NOW) == earlier(NOW + DAY, NOW) == NOW
