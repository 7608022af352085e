from __future__ import annotations

from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.api.keys import object_key
from shared.core.errors import InvalidError

PREFIX = "/v1/buckets/photos/objects/"


def read(quoted: str, *, max_bytes: int = 1024, prefix: str = PREFIX) -> str:
    """Read a key as the server shows it: the raw path, and its own decoded end."""
    raw = prefix + quoted
    matched = unquote(raw)[len(unquote(prefix)) :]
    return object_key(raw.encode("ascii"), matched, max_bytes=max_bytes)


@given(
    st.text(
        st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=200
    ).filter(lambda key: not {".", ".."} & set(key.split("/")))
)
def test_key_comes_back_as_it_was_sent(key: str) -> None:
    assert read(quote(key), prefix="/v1/buckets/b%2Ch/objects/") == key


@pytest.mark.parametrize("quoted", ["a/b/c", "a%2Fb%2fc"])
def test_slashes_may_be_quoted(quoted: str) -> None:
    assert read(quoted) == "a/b/c"


@pytest.mark.parametrize(
    "quoted",
    [
        "",
        "%00",
        "a%00b",
        "..",
        ".",
        "%2e%2e",
        "a/../b",
        "a/..",
        "%2e/a",
        "%ff",
        "a%c3",
        "%ed%a0%80",
        "%c0%ae%c0%ae/x",
    ],
)
def test_key_that_breaks_a_rule_is_refused(quoted: str) -> None:
    with pytest.raises(InvalidError) as refused:
        read(quoted)
    assert refused.value.code == "key_invalid"


def test_key_length_counts_bytes() -> None:
    assert read("a" * 1024) == "a" * 1024
    assert read(quote("é" * 512)) == "é" * 512
    for quoted in ("a" * 1025, quote("é" * 512 + "a"), quote("😀" * 257)):
        with pytest.raises(InvalidError):
            read(quoted)
    with pytest.raises(InvalidError):
        read("abcd", max_bytes=3)


def test_broken_bytes_before_the_key_are_refused() -> None:
    raw = b"/v1/buckets/%ff/objects/key"
    with pytest.raises(InvalidError):
        object_key(raw, "key", max_bytes=1024)


@pytest.mark.parametrize(
    "quoted", ["...", "..a", "a..", ".hidden", "a/.../b", "%252e%252e", "a//b", "/a"]
)
def test_keys_that_only_look_odd_are_allowed(quoted: str) -> None:
    assert read(quoted) == unquote(quoted)
