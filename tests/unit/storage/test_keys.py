from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.storage.errors import InvalidKey
from shared.storage.keys import MAX_KEY_BYTES, check_key, fresh_key


def test_fresh_keys_are_allowed_spread_and_never_equal() -> None:
    keys = [fresh_key("tenant/a") for _ in range(2000)]
    assert len(set(keys)) == 2000
    folders = {check_key(key)[2] for key in keys}
    assert len(folders) > 200
    assert all(key.startswith("tenant/a/") for key in keys)
    assert len(check_key(fresh_key())) == 2


def test_a_fresh_key_needs_an_allowed_prefix() -> None:
    with pytest.raises(InvalidKey):
        fresh_key("../elsewhere")


@given(st.text(max_size=60))
def test_no_key_that_is_allowed_can_leave_a_root(key: str) -> None:
    try:
        segments = check_key(key)
    except InvalidKey:
        return
    assert "/".join(segments) == key
    assert not {"", ".", ".."} & set(segments)
    assert "\0" not in key
    assert len(key.encode()) <= MAX_KEY_BYTES


def test_the_longest_key_is_counted_in_bytes() -> None:
    segments = ["ä" * 127] * 4
    longest = "/".join(segments) + "/" + "x" * (MAX_KEY_BYTES - 4 * 255)
    assert len(longest.encode()) == MAX_KEY_BYTES
    check_key(longest)
    with pytest.raises(InvalidKey):
        check_key(longest + "x")
