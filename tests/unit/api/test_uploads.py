from __future__ import annotations

import base64
import hashlib

import pytest

from services.api.uploads import Declared, client_metadata, metadata_headers, parse_declared
from shared.core.errors import InvalidError

SHA256 = hashlib.sha256(b"x").hexdigest()
MD5 = hashlib.md5(b"x").digest()


def parse(*headers: tuple[str, str], max_metadata_bytes: int = 2048) -> Declared:
    raw = [(name.encode(), value.encode()) for name, value in headers]
    return parse_declared(raw, max_metadata_bytes=max_metadata_bytes)


def test_nothing_said_means_bytes_of_no_type() -> None:
    assert parse() == Declared(content_type="application/octet-stream")


def test_promises_are_read() -> None:
    declared = parse(
        ("content-length", "1"),
        ("x-blox-sha256", SHA256.upper()),
        ("content-md5", base64.b64encode(MD5).decode()),
        ("content-type", "text/plain; charset=utf-8"),
        ("x-blox-meta-colour", "grün"),
        ("x-blox-meta-colour", "red"),
        ("cache-control", "no-store"),
    )
    assert declared == Declared(
        size=1,
        sha256=SHA256,
        md5=MD5.hex(),
        content_type="text/plain; charset=utf-8",
        metadata={"colour": "grün, red", "http.cache-control": "no-store"},
    )


def test_metadata_comes_back_under_the_headers_that_brought_it() -> None:
    headers = metadata_headers({"colour": "grün", "http.content-encoding": "gzip"})
    assert headers["content-encoding"] == "gzip"
    assert headers["x-blox-meta-colour"].encode("latin-1").decode() == "grün"


def test_size_of_a_chunked_body_is_the_declared_one() -> None:
    assert parse(("transfer-encoding", "chunked")).size is None
    assert parse(("transfer-encoding", "chunked"), ("x-blox-size", "7")).size == 7
    assert parse(("content-length", "7"), ("x-blox-size", "7")).size == 7


@pytest.mark.parametrize(
    "headers",
    [
        [("x-blox-sha256", "abc")],
        [("x-blox-sha256", "g" * 64)],
        [("content-md5", "not base64!")],
        [("content-md5", "YWJj")],
        [("content-length", "7"), ("x-blox-size", "8")],
        [("x-blox-size", "-1")],
        [("x-blox-size", "1e3")],
        [("content-range", "bytes 0-1/2")],
        [("content-type", "text/plain\tx")],
        [("content-type", "a/" + "b" * 255)],
        [("x-blox-meta-", "no name")],
        [("x-blox-meta-http.cache-control", "taken")],
        [("x-blox-meta-a", "tab\there")],
        [("x-blox-meta-a", "x" * 2048)],
    ],
)
def test_what_cannot_be_meant_is_refused(headers: list[tuple[str, str]]) -> None:
    with pytest.raises(InvalidError):
        parse(*headers)


def test_kept_header_comes_back_byte_for_byte() -> None:
    said = 'attachment; filename="grün.txt"'
    kept = metadata_headers(parse(("content-disposition", said)).metadata)
    assert kept["content-disposition"].encode("latin-1") == said.encode()


@pytest.mark.parametrize("name", ["http.set-cookie", "HTTP.transfer-encoding", "http.etag"])
def test_no_metadata_of_a_client_becomes_a_header_of_ours(name: str) -> None:
    with pytest.raises(InvalidError):
        client_metadata({name: "x"}, max_bytes=2048)
    # Also not what stood in the table before it was refused.
    (header,) = metadata_headers({name.lower(): "x"})
    assert header.startswith("x-blox-meta-")


@pytest.mark.parametrize("header", [b"x-blox-meta-a", b"content-disposition"])
def test_metadata_that_is_not_utf8_is_refused(header: bytes) -> None:
    with pytest.raises(InvalidError):
        parse_declared([(header, b"\xff")], max_metadata_bytes=2048)


def test_a_narrower_limit_on_metadata_holds() -> None:
    assert parse(("x-blox-meta-a", "1234"), max_metadata_bytes=5).metadata == {"a": "1234"}
    with pytest.raises(InvalidError):
        parse(("x-blox-meta-a", "12345"), max_metadata_bytes=5)
