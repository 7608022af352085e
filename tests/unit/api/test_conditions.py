from __future__ import annotations

import datetime as dt

import pytest

from services.api.conditions import Conditions, Verdict, parse_conditions
from shared.core.errors import InvalidError

ETAG = "9e107d9d372bb6826bd81d3542a419d6"
MODIFIED = dt.datetime(2024, 5, 6, 7, 8, 9, 500_000)
SAME_SECOND = "Mon, 06 May 2024 07:08:09 GMT"
BEFORE = "Mon, 06 May 2024 07:08:08 GMT"


def judge(**headers: str) -> Verdict:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return parse_conditions(named).judge(etag=ETAG, modified_at=MODIFIED)


def test_no_condition_serves() -> None:
    assert judge() is Verdict.SERVE


@pytest.mark.parametrize("tags", [f'"{ETAG}"', "*", f'"other", "{ETAG}"', ETAG])
def test_if_match_with_the_tag_serves(tags: str) -> None:
    assert judge(if_match=tags) is Verdict.SERVE


@pytest.mark.parametrize("tags", ['"other"', f'W/"{ETAG}"'])
def test_if_match_without_the_tag_or_with_a_weak_one_fails(tags: str) -> None:
    assert judge(if_match=tags) is Verdict.FAILED


@pytest.mark.parametrize("tags", [f'"{ETAG}"', "*", f'W/"{ETAG}"', f'"x" ,W/"{ETAG}"', ETAG])
def test_if_none_match_with_the_tag_is_not_modified(tags: str) -> None:
    assert judge(if_none_match=tags) is Verdict.NOT_MODIFIED


def test_if_none_match_without_the_tag_serves() -> None:
    assert judge(if_none_match='"other"') is Verdict.SERVE


def test_dates_are_compared_by_the_second() -> None:
    assert judge(if_modified_since=SAME_SECOND) is Verdict.NOT_MODIFIED
    assert judge(if_modified_since=BEFORE) is Verdict.SERVE
    assert judge(if_unmodified_since=SAME_SECOND) is Verdict.SERVE
    assert judge(if_unmodified_since=BEFORE) is Verdict.FAILED


def test_tags_beat_dates() -> None:
    assert judge(if_none_match='"other"', if_modified_since=SAME_SECOND) is Verdict.SERVE
    assert judge(if_match=f'"{ETAG}"', if_unmodified_since=BEFORE) is Verdict.SERVE


def test_dates_that_cannot_be_read_are_ignored() -> None:
    assert judge(if_modified_since="yesterday", if_unmodified_since="0") is Verdict.SERVE


@pytest.mark.parametrize("tags", ["", " ", '"a" "b"', '"open', "a b", '"a",,"b'])
def test_tags_that_are_none_are_refused(tags: str) -> None:
    with pytest.raises(InvalidError) as refused:
        judge(if_match=tags)
    assert refused.value.code == "condition_invalid"


@pytest.mark.parametrize(
    ("header", "kept"),
    [
        (f'"{ETAG}"', True),
        ('"other"', False),
        (f'W/"{ETAG}"', False),
        (SAME_SECOND, True),
        (BEFORE, False),
        ("nonsense", False),
    ],
)
def test_if_range_keeps_the_range_only_for_the_same_content(header: str, kept: bool) -> None:
    conditions = Conditions(if_range=header)
    assert conditions.keeps_range(etag=ETAG, modified_at=MODIFIED) is kept


def test_write_conditions_carry_strong_tags_only_where_strength_counts() -> None:
    parsed = parse_conditions({"if-match": 'W/"a", "b"', "if-none-match": 'W/"c"'}).for_write()
    assert parsed.if_match == ("b",)
    assert parsed.if_none_match == ("c",)
    assert parse_conditions({}).for_write().if_match is None
    assert parse_conditions({"if-none-match": "*"}).for_write().if_none_match == ("*",)
