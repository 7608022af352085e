"""What a caller may send, and the conditions of a write: pure rules."""

from __future__ import annotations

import math
import string

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.catalog.buckets import BucketSpec
from shared.catalog.conditions import Conditions
from shared.catalog.limits import (
    MAX_METADATA_BYTES,
    check_bucket_name,
    check_content_type,
    check_key,
    check_metadata,
    check_sha256,
    check_tenant_id,
    upload_attempts,
)
from shared.catalog.listing import successor
from shared.core.errors import InvalidError, PreconditionError


@given(st.text(min_size=1, max_size=300) | st.text(alphabet="./a\0\ud800", min_size=1, max_size=6))
def test_a_key_is_returned_as_it_is_or_refused(key: str) -> None:
    is_too_long = len(key.encode("utf-8", "surrogatepass")) > 1024
    has_surrogate = any(0xD800 <= ord(letter) < 0xE000 for letter in key)
    folds = any(part in {".", ".."} for part in key.split("/"))
    if not (is_too_long or has_surrogate or folds or "\0" in key):
        assert check_key(key) == key
        return
    with pytest.raises(InvalidError) as caught:
        check_key(key)
    assert caught.value.code == "key_invalid"


@given(st.binary(max_size=6), st.binary(max_size=6))
def test_the_successor_parts_what_has_the_prefix_from_what_follows(
    prefix: bytes, other: bytes
) -> None:
    end = successor(prefix)
    has_prefix = other.startswith(prefix)
    if end is None:
        assert has_prefix or other < prefix
    else:
        assert has_prefix == (prefix <= other < end)


@pytest.mark.parametrize(
    "rules",
    [
        {"region": "9eu"},
        {"region": "-"},
        {"max_object_bytes": 2**63},
        {"review_policy": {"human_seconds": math.inf}},
        {"review_policy": {"human_seconds": 1e300}},
        {"review_policy": {"quarantine_seconds": math.inf}},
        {"review_policy": {"max_bytes": 2**63}},
    ],
)
def test_rules_of_a_bucket_that_nobody_could_keep_are_refused(rules: dict[str, object]) -> None:
    with pytest.raises(pydantic.ValidationError):
        BucketSpec.model_validate({"channels": ["a"], **rules})


@pytest.mark.parametrize("name", ["abc", "a.b-c", "0" * 63, "photos-2024.eu"])
def test_good_bucket_names(name: str) -> None:
    assert check_bucket_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "ab", "Abc", "a_b", "abc-", ".abc", "a..b", "a" * 64, "abc\n"]
)
def test_bad_bucket_names(name: str) -> None:
    with pytest.raises(InvalidError):
        check_bucket_name(name)


@pytest.mark.parametrize("tenant", ["", "A", "a b", "_a", "a\n", "a" * 65])
def test_bad_tenants(tenant: str) -> None:
    with pytest.raises(InvalidError):
        check_tenant_id(tenant)


def test_content_type_has_a_default_and_a_limit() -> None:
    assert check_content_type(None) == check_content_type("") == "application/octet-stream"
    assert check_content_type("text/plain; charset=utf-8") == "text/plain; charset=utf-8"
    for bad in ("text/plain\r\nX: y", "text/pläin", "x" * 256):
        with pytest.raises(InvalidError):
            check_content_type(bad)


def test_metadata_names_become_small_and_sizes_are_bounded() -> None:
    assert check_metadata({"Colour": "rot-grün"}) == {"colour": "rot-grün"}
    assert check_metadata({"a": "x" * (MAX_METADATA_BYTES - 1)})
    for bad in ({"a": "x" * MAX_METADATA_BYTES}, {"": "x"}, {"a b": "x"}, {"a": "x\n"}):
        with pytest.raises(InvalidError):
            check_metadata(bad)


def test_sha256_is_small_hexadecimal() -> None:
    assert check_sha256("AB" * 32) == "ab" * 32
    for bad in ("", "ab" * 31, "zz" * 32, "ab" * 33):
        with pytest.raises(InvalidError):
            check_sha256(bad)


def test_every_channel_has_its_tries() -> None:
    assert upload_attempts(3) > upload_attempts(2) > upload_attempts(1) > 1


_etags = st.text(alphabet=string.hexdigits, min_size=1, max_size=3)
_lists = st.none() | st.lists(_etags | st.just("*"), max_size=3).map(tuple)


@given(_lists, _lists, st.none() | _etags)
def test_conditions_hold_by_their_definition(
    if_match: tuple[str, ...] | None, if_none_match: tuple[str, ...] | None, etag: str | None
) -> None:
    def names(wanted: tuple[str, ...]) -> bool:
        return etag is not None and ("*" in wanted or etag in wanted)

    holds = (if_match is None or names(if_match)) and (
        if_none_match is None or not names(if_none_match)
    )
    conditions = Conditions(if_match=if_match, if_none_match=if_none_match)
    if holds:
        conditions.judge(etag)
        return
    with pytest.raises(PreconditionError):
        conditions.judge(etag)
