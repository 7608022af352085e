"""The built-in reviewers, each on its own."""

from __future__ import annotations

import io
import zipfile

import pytest

from services.review.reviewers import block_list, declared, keywords, size
from services.review.reviewers.__main__ import judge
from services.review.reviewers.finding import Facts, Outcome
from services.review.reviewers.sniffing import sniff

PNG = b"\x89PNG\r\n\x1a\n" + b"\x00\x00\x00\rIHDR" + bytes(64)
PDF = b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n"
JPEG = b"\xff\xd8\xff\xe0\x00\x10JFIF\x00" + bytes(32)


def facts(content: bytes = b"x", content_type: str = "text/plain") -> Facts:
    return Facts(size=len(content), sha256="ab" * 32, content_type=content_type)


def zipped() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("readme.txt", "hello")
    return out.getvalue()


@pytest.mark.parametrize(
    ("count", "outcome"),
    [(9, Outcome.REJECT), (10, Outcome.PASS), (20, Outcome.PASS), (21, Outcome.REJECT)],
)
def test_size_limits_are_inclusive(count: int, outcome: Outcome) -> None:
    finding = size.review(Facts(count, "", ""), min_bytes=10, max_bytes=20)
    assert finding.outcome is outcome


def test_size_without_an_upper_limit_passes_anything() -> None:
    assert size.review(Facts(1 << 50, "", ""), min_bytes=0, max_bytes=None).outcome is Outcome.PASS


def test_block_list_rejects_what_is_on_it() -> None:
    listed = block_list.review(facts(), blocked_sha256={"ab" * 32})
    other = block_list.review(facts(), blocked_sha256={"cd" * 32})
    assert (listed.outcome, other.outcome) == (Outcome.REJECT, Outcome.PASS)


@pytest.mark.parametrize(
    ("content", "content_type"),
    [
        (PNG, "image/png"),
        (JPEG, "image/jpg"),
        (PDF, "application/pdf"),
        (b"hello world", "text/plain; charset=utf-8"),
        (b'{"a": 1}', "application/json"),
        (b"<svg xmlns='x'/>", "image/svg+xml"),
        ("grüße, 你好".encode(), "text/markdown"),
        ("hello".encode("utf-16"), "text/plain"),
        # The library takes two letters for a bitmap; text stays text.
        (b"BMW is a brand", "text/plain"),
        (zipped(), "application/zip"),
        (zipped(), "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
        (zipped(), "application/epub+zip"),
        (b"\x00\x01\x02\x03 unknown", "application/x-own-format"),
        (b"hello", "application/x-own-format"),
        (PNG, "application/octet-stream"),
        (PNG, ""),
        (b"", "image/png"),
    ],
)
def test_declared_type_agrees(content: bytes, content_type: str) -> None:
    finding = declared.review(facts(content, content_type), sniff(content), type_mismatch="reject")
    assert finding.outcome is Outcome.PASS, finding


@pytest.mark.parametrize(
    ("content", "content_type"),
    [
        (PNG, "image/jpeg"),
        (PNG, "text/plain"),
        (b"hello world", "image/png"),
        (b"hello world", "application/pdf"),
        (b"hello world", "video/mp4"),
        (PDF, "image/png"),
        (b"MZ" + bytes(200), "text/html"),
        (b"MZ" + bytes(200), "image/gif"),
        (b"\x7fELF" + bytes(200), "application/pdf"),
        (b"\x00\x01\x02\x03", "application/json"),
        (zipped(), "image/png"),
        (bytes(100), "application/zip"),
    ],
)
def test_declared_type_is_contradicted(content: bytes, content_type: str) -> None:
    finding = declared.review(
        facts(content, content_type), sniff(content), type_mismatch="doubtful"
    )
    assert finding.outcome is Outcome.DOUBTFUL
    assert content_type in finding.detail


def test_declared_type_may_be_ignored() -> None:
    finding = declared.review(facts(PNG, "text/plain"), sniff(PNG), type_mismatch="ignore")
    assert finding.outcome is Outcome.PASS


def scan(chunks: list[bytes], *, reject: set[str], doubtful: set[str] = frozenset()) -> Outcome:  # type: ignore[assignment]
    found = keywords.KeywordScan(reject=reject, doubtful=doubtful)
    for chunk in chunks:
        if not found.feed(chunk):
            break
    return found.finish().outcome


@pytest.mark.parametrize("cut", range(1, 20))
def test_keyword_across_a_chunk_border(cut: int) -> None:
    text = b"head forbidden tail"
    assert scan([text[:cut], text[cut:]], reject={"Forbidden"}) is Outcome.REJECT


def test_keyword_cut_into_single_bytes() -> None:
    text = "你好，违禁词在此".encode()
    assert scan([text[:3], *(bytes([b]) for b in text[3:])], reject={"违禁词"}) is Outcome.REJECT


def test_keyword_in_utf16() -> None:
    assert scan(["a Secret".encode("utf-16")], reject={"secret"}) is Outcome.REJECT


def test_keyword_in_utf32() -> None:
    assert scan(["a Secret".encode("utf-32")], reject={"secret"}) is Outcome.REJECT
    mixed = b"\xff\xfe\0\0" + "a secret".encode("utf-16-le")
    assert scan([mixed], reject={"secret"}) is Outcome.REJECT


@pytest.mark.parametrize("signature", [b"%PDF-1.7\n", b"{\\rtf1 ", b"%!PS-Adobe-3.0\n"])
def test_keyword_behind_a_signature_that_is_text(signature: bytes) -> None:
    """It may be served as plain text all the same."""
    content = signature + b"a secret"
    order = {
        "facts": {"size": len(content), "sha256": "0" * 64, "content_type": "text/plain"},
        "type_mismatch": "reject",
        "reject": ["secret"],
        "doubtful": [],
    }
    found = judge(order, io.BytesIO(content).read)
    assert [(one.step, one.outcome) for one in found] == [
        ("declared_type", Outcome.PASS),
        ("keywords", Outcome.REJECT),
    ]


def test_keyword_case_is_folded() -> None:
    assert scan([b"STRASSE"], reject={"straße"}) is Outcome.REJECT


def test_keyword_rejection_after_a_doubt_rejects() -> None:
    chunks = [b"perhaps ", b"forbidden"]
    assert scan(chunks, reject={"forbidden"}, doubtful={"perhaps"}) is Outcome.REJECT
    assert scan(chunks, reject={"other"}, doubtful={"perhaps"}) is Outcome.DOUBTFUL
    assert scan(chunks, reject=set(), doubtful={"perhaps"}) is Outcome.DOUBTFUL


def test_keyword_absent_passes() -> None:
    assert scan([b"nothing here"], reject={"forbidden"}, doubtful={"perhaps"}) is Outcome.PASS
    assert scan([], reject={"forbidden"}) is Outcome.PASS
