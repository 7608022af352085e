"""What makes a resumable upload: part sizes, the parts that count, fingerprints, the ETag."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.catalog.conditions import ANY, UNCONDITIONAL, Conditions
from shared.catalog.models import UploadPart
from shared.catalog.uploading.rules import (
    DEFAULT_PART_BYTES,
    MAX_PARTS,
    CompleteOrder,
    SessionSpec,
    UploadLimits,
    WantedPart,
    check_operation_id,
    choose_part_bytes,
    choose_parts,
    conditions_json,
    conditions_of,
    multipart_etag,
)
from shared.core.errors import InvalidError

LIMITS = UploadLimits(
    max_object_bytes=5 << 40,
    min_part_bytes=64 * 1024,
    max_part_bytes=5 << 30,
    expiry_seconds=1.0,
    max_open=1,
)


#: Demands nothing.
ANYTHING = CompleteOrder()


def part(number: int, size: int = 10) -> UploadPart:
    return UploadPart(number=number, size_bytes=size, md5=f"m{number}", sha256=f"s{number}")


def chosen(*there: UploadPart, order: CompleteOrder = ANYTHING, **more: Any) -> list[int]:
    found = choose_parts(there, order, **{"declared_size": None, "min_part_bytes": 5, **more})
    return [one.number for one in found]


@given(st.integers(0, 5 << 40))
def test_proposed_parts_are_never_too_many(size: int) -> None:
    part_bytes = choose_part_bytes(size, None, LIMITS)
    assert LIMITS.min_part_bytes <= part_bytes <= LIMITS.max_part_bytes
    assert -(-size // part_bytes) <= MAX_PARTS
    assert part_bytes == DEFAULT_PART_BYTES or part_bytes > DEFAULT_PART_BYTES


def test_wanted_part_size_is_taken_or_refused() -> None:
    assert choose_part_bytes(None, None, LIMITS) == DEFAULT_PART_BYTES
    assert choose_part_bytes(None, 64 * 1024, LIMITS) == 64 * 1024
    for size, wanted in ((None, 1000), (None, 6 << 30), (1 << 40, 64 * 1024)):
        with pytest.raises(InvalidError) as refused:
            choose_part_bytes(size, wanted, LIMITS)
        assert refused.value.code == "part_bytes_invalid"


def test_without_a_list_all_parts_count_and_none_is_missing() -> None:
    assert chosen(part(1), part(2), part(3, size=1)) == [1, 2, 3]
    assert chosen(part(1, size=0)) == [1]
    for there, missing in (((), 1), ((part(2),), 1), ((part(1), part(3)), 2)):
        with pytest.raises(InvalidError) as refused:
            chosen(*there)
        assert (refused.value.code, refused.value.facts["number"]) == ("part_missing", missing)


def test_only_the_last_part_may_be_small() -> None:
    with pytest.raises(InvalidError) as refused:
        chosen(part(1, size=4), part(2))
    assert (refused.value.code, refused.value.facts["number"]) == ("part_too_small", 1)


@pytest.mark.parametrize("where", ["declared", "order"])
def test_declared_sizes_are_those_of_the_parts(where: str) -> None:
    def sizes(size: int) -> dict[str, Any]:
        if where == "declared":
            return {"declared_size": size}
        return {"order": CompleteOrder(size=size)}

    assert chosen(part(1), part(2, size=3), **sizes(13)) == [1, 2]
    with pytest.raises(InvalidError) as refused:
        chosen(part(1), part(2, size=3), **sizes(12))
    assert refused.value.code == "size_mismatch"


def test_named_parts_are_compared_by_what_is_said_of_them() -> None:
    there = [part(1), part(2), part(5)]
    named = (WantedPart(number=1, etag="m1"), WantedPart(number=5, sha256="s5"))
    assert chosen(*there, order=CompleteOrder(parts=named)) == [1, 5]
    for wrong, code in (
        ((), "parts_invalid"),
        ((WantedPart(number=2), WantedPart(number=1)), "parts_invalid"),
        ((WantedPart(number=1), WantedPart(number=1)), "parts_invalid"),
        ((WantedPart(number=3),), "part_missing"),
        ((WantedPart(number=1, etag="m2"),), "part_mismatch"),
        ((WantedPart(number=1, etag="m1", sha256="s2"),), "part_mismatch"),
    ):
        with pytest.raises(InvalidError) as refused:
            chosen(*there, order=CompleteOrder(parts=wrong))
        assert refused.value.code == code


def test_etag_is_that_of_s3() -> None:
    md5s = [hashlib.md5(content).hexdigest() for content in (b"a" * 5, b"b" * 3)]
    whole = hashlib.md5(bytes.fromhex(md5s[0]) + bytes.fromhex(md5s[1])).hexdigest()
    assert multipart_etag(md5s) == f"{whole}-2"


def test_anything_else_is_another_operation() -> None:
    spec = {"operation_id": "x", "key": "k", "content_type": "t", "metadata": {"a": "1", "b": "2"}}
    first = SessionSpec(**spec).fingerprint("bucket")
    assert SessionSpec(**{**spec, "metadata": {"b": "2", "a": "1"}}).fingerprint("bucket") == first
    others = [
        SessionSpec(**spec).fingerprint("other"),
        *(
            SessionSpec(**{**spec, **change}).fingerprint("bucket")
            for change in (
                {"key": "l"},
                {"size": 1},
                {"sha256": "0" * 64},
                {"content_type": "u"},
                {"metadata": {"a": "1"}},
                {"part_bytes": 5},
                {"conditions": Conditions(if_match=("e",))},
                {"conditions": Conditions(if_none_match=("e",))},
            )
        ),
    ]
    assert len({first, *others}) == 1 + len(others)
    assert CompleteOrder().fingerprint is None
    assert CompleteOrder(size=1).fingerprint != CompleteOrder(size=2).fingerprint


@pytest.mark.parametrize(
    "conditions", [UNCONDITIONAL, Conditions(if_match=("a", "b")), Conditions(if_none_match=(ANY,))]
)
def test_conditions_are_kept_as_they_were(conditions: Conditions) -> None:
    assert conditions_of(conditions_json(conditions)) == conditions


@pytest.mark.parametrize("text", ["", "x" * 192, " x", "x ", "a\nb", "a\0b"])
def test_operation_ids_that_are_none(text: str) -> None:
    with pytest.raises(InvalidError):
        check_operation_id(text)


def test_operation_ids_may_be_any_text() -> None:
    for text in ("x", "Übung 1/2", "x" * 191):
        assert check_operation_id(text) == text
