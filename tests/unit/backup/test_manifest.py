"""The lines of a manifest: written, cut off, read again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shared.catalog.backups.manifest import (
    Entry,
    ManifestDamaged,
    decode,
    encode,
    tail_line,
    whole_lines,
)

ENTRY = Entry(
    key='naïve/\n"key" ☃',
    version=7,
    generation=3,
    blob=5,
    sha256="ab" * 32,
    size=12,
    etag="cd" * 16,
    content_type="text/plain",
    metadata={"who": "Ünal"},
    modified_at="2026-06-01T12:00:00.000001",
    content=9,
    target_key="acme/ab/" + "ab" * 16,
)


def test_an_entry_is_one_line_and_reads_as_it_was_written() -> None:
    line = ENTRY.line()
    assert line.count(b"\n") == 1
    assert Entry.read(decode(line)) == ENTRY
    assert ENTRY.modified.microsecond == 1


def test_an_entry_without_bytes_says_why() -> None:
    assert b"lacks" not in ENTRY.line()
    lacking = replace(ENTRY, content=0, target_key="", lacks="lost")
    assert Entry.read(decode(lacking.line())) == lacking
    assert decode(tail_line(entries=2, size=10, lacking=1))["lacking"] == 1


def test_whole_lines_tell_where_they_end_and_what_is_cut_off_is_left() -> None:
    text = ENTRY.line() + encode({"end": True}) + b'{"cut'
    found = list(whole_lines(text, offset=100))
    assert [offset for offset, _ in found] == [100 + len(ENTRY.line()), 100 + len(text) - 5]
    assert Entry.read(found[0][1]) == ENTRY


@pytest.mark.parametrize("text", [b"{", b"no json\n", b"[1]\n", b""])
def test_what_is_no_manifest_is_damaged(text: bytes) -> None:
    with pytest.raises(ManifestDamaged):
        list(whole_lines(text, offset=0))


def test_a_line_of_other_fields_is_no_entry() -> None:
    with pytest.raises(ManifestDamaged):
        Entry.read({"key": "k"})
