from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.api.ranges import ByteRange, Unsatisfiable, parse_range


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-0", ByteRange(0, 1)),
        ("bytes=0-9", ByteRange(0, 10)),
        ("bytes=5-", ByteRange(5, 5)),
        ("bytes=9-9", ByteRange(9, 1)),
        ("bytes=3-99", ByteRange(3, 7)),
        ("bytes=-4", ByteRange(6, 4)),
        ("bytes=-99", ByteRange(0, 10)),
        ("BYTES = 2 - 3", ByteRange(2, 2)),
        ("bytes=2-" + "9" * 100, ByteRange(2, 8)),
        ("bytes=-" + "9" * 100, ByteRange(0, 10)),
    ],
)
def test_range_of_ten_bytes(header: str, expected: ByteRange) -> None:
    assert parse_range(header, size=10) == expected


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "bytes",
        "bytes=",
        "bytes=-",
        "bytes=a-b",
        "bytes=5-3",
        "bytes=0-1,3-4",
        "lines=0-1",
        "bytes=--1",
        "bytes=0x1-2",
        "bytes=٣-٤",
    ],
)
def test_range_that_is_not_understood_is_ignored(header: str | None) -> None:
    assert parse_range(header, size=10) is None


@pytest.mark.parametrize(
    ("header", "size"),
    [
        ("bytes=10-", 10),
        ("bytes=10-11", 10),
        ("bytes=-0", 10),
        ("bytes=0-", 0),
        ("bytes=-5", 0),
        ("bytes=" + "9" * 100 + "-", 10),
    ],
)
def test_range_outside_the_content_is_unsatisfiable(header: str, size: int) -> None:
    with pytest.raises(Unsatisfiable):
        parse_range(header, size=size)


@given(st.binary(max_size=50), st.integers(0, 60), st.integers(0, 60))
def test_range_cuts_like_a_slice(content: bytes, first: int, last: int) -> None:
    try:
        found = parse_range(f"bytes={first}-{last}", size=len(content))
    except Unsatisfiable:
        assert first >= len(content)
        return
    if found is None:
        assert last < first
        return
    assert content[found.start : found.start + found.length] == content[first : last + 1]
    assert found.length > 0


def test_content_range_names_the_last_byte() -> None:
    assert ByteRange(2, 3).content_range(10) == "bytes 2-4/10"
