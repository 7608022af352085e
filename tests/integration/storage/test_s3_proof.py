"""What a transfer to S3 asks for as proof, how often, and that a provider who lies is found out."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from shared.core.clock import Deadline
from shared.storage.errors import ChecksumMismatch, ObjectMissing, SourceError
from shared.storage.registry import OpenChannel
from shared.storage.source import ChannelSource
from shared.storage.spec import Tuning
from shared.storage.transfer import Transferred, transfer
from tests.integration.storage.test_s3_bad_endpoint import Memory, channel_at
from tests.support.content import sha256
from tests.support.scripted import Request, scripted_server

DATA = os.urandom(100_000)
PART = 5 * 1024 * 1024
LARGE = os.urandom(PART + 1000)
DATE = {"Last-Modified": "Mon, 02 Nov 2026 10:00:00 GMT"}


class Provider:
    """Keeps what it is sent, in parts too, unless a test has it keep something else."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.kept: dict[str, bytes] = {}
        self.parts: dict[str, bytes] = {}
        self.asked: list[str] = []
        #: What becomes of bytes after their ETag was told.
        self.spoil = lambda data: data
        self.loses = False

    def script(self, request: Request) -> None:
        """Answer one request."""
        path, _, query = request.path.partition("?")
        copied = request.headers.get("x-amz-copy-source")
        self.asked.append("COPY" if copied else request.method)
        if request.method in {"HEAD", "GET"}:
            self._give(request, path)
        elif copied:
            self._copy(request, path, "/" + copied.lstrip("/"))
        elif request.method == "PUT" and "partNumber" in query:
            self.parts[query] = request.body
            request.answer(200, b"", {"ETag": _etag(request.body)})
        elif request.method == "PUT":
            self._keep(path, request.body)
            request.answer(200, b"", {"ETag": _etag(request.body)})
        elif query == "uploads":
            request.answer(200, b"<R><UploadId>u</UploadId></R>")
        else:
            whole = b"".join(self.parts[query] for query in sorted(self.parts))
            self._keep(path, whole)
            request.answer(200, b"<R><ETag>e-2</ETag></R>")

    def _keep(self, path: str, data: bytes) -> None:
        if not self.loses:
            self.kept[path] = self.spoil(data)

    def _give(self, request: Request, path: str) -> None:
        if path == "/bucket":
            request.answer(200)
        elif path not in self.kept:
            request.answer(404)
        else:
            data = self.kept[path]
            etag = '"e-2"' if self.parts else _etag(data)
            headers = {"ETag": etag, **DATE}
            if asked := request.headers.get("range"):
                start, _, end = asked.removeprefix("bytes=").partition("-")
                headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
                data = data[int(start) : int(end) + 1]
            request.answer(200, data, headers)

    def _copy(self, request: Request, path: str, source: str) -> None:
        if source not in self.kept:
            request.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        self._keep(path, self.kept[source])
        request.answer(200, f"<R><ETag>{_etag(self.kept[source])}</ETag></R>".encode())


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


@contextmanager
def provider() -> Iterator[Provider]:
    with scripted_server(lambda _: None) as server:
        made = Provider(server.endpoint)
        server.script = made.script
        yield made


@pytest.fixture
def at() -> Iterator[Provider]:
    with provider() as made:
        yield made


def send(at: Provider, data: bytes = DATA) -> Transferred:
    opened = OpenChannel.around(channel_at(at.endpoint), Tuning(part_bytes=PART))
    return transfer(
        Memory(data), opened, "k", size=len(data), sha256=sha256(data), deadline=Deadline(60)
    )


def copy(at: Provider, source: bytes | None, *, knows_md5: bool = True) -> Transferred:
    opened = OpenChannel.around(channel_at(at.endpoint), Tuning(part_bytes=PART))
    if source is not None:
        at.kept["/bucket/from"] = source
    return transfer(
        ChannelSource(opened.channel, "from"),
        opened,
        "k",
        size=len(DATA),
        sha256=sha256(DATA),
        remote=opened.channel.remote("from"),
        md5=hashlib.md5(DATA).hexdigest() if knows_md5 else None,
        deadline=Deadline(60),
    )


def test_each_way_asks_once_for_what_is_there(at: Provider) -> None:
    send(at)
    assert at.asked == ["PUT", "HEAD"]
    at.asked.clear()
    copy(at, DATA)
    assert at.asked == ["COPY", "HEAD"]
    at.asked.clear()
    copy(at, DATA, knows_md5=False)
    assert at.asked == ["COPY", "HEAD", "GET"]
    at.asked.clear()
    send(at, LARGE)
    assert at.asked == ["POST", "PUT", "PUT", "POST", "HEAD", "GET"]


def test_a_write_that_is_lost_is_missed(at: Provider) -> None:
    at.loses = True
    with pytest.raises(ObjectMissing):
        send(at)
    for way in (lambda: copy(at, DATA), lambda: send(at, LARGE)):
        with pytest.raises(Exception, match="not there"):
            way()


@pytest.mark.parametrize("data", [DATA, LARGE])
def test_other_bytes_of_the_same_size_are_found_out(at: Provider, data: bytes) -> None:
    at.spoil = lambda data: data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(ChecksumMismatch) as caught:
        send(at, data)
    assert caught.value.facts["what"] == "content"


@pytest.mark.parametrize("data", [DATA, LARGE])
def test_fewer_bytes_are_found_out_without_reading_them(at: Provider, data: bytes) -> None:
    at.spoil = lambda data: data[:-1]
    with pytest.raises(ChecksumMismatch) as caught:
        send(at, data)
    assert caught.value.facts["what"] == "size"
    assert "GET" not in at.asked


@pytest.mark.parametrize("knows_md5", [True, False])
def test_a_copy_that_the_provider_spoils_is_found_out(at: Provider, knows_md5: bool) -> None:
    for spoil in (lambda data: data[:-1], lambda data: data[1:] + data[:1]):
        at.spoil = spoil
        with pytest.raises(ChecksumMismatch):
            copy(at, DATA, knows_md5=knows_md5)


@pytest.mark.parametrize("knows_md5", [True, False])
@pytest.mark.parametrize(
    ("source", "code"),
    [
        (None, "source_missing"),
        (DATA[:-1], "source_size"),
        (DATA + b"x", "source_size"),
        (DATA[1:] + DATA[:1], "source_sha256"),
    ],
)
def test_a_copy_of_a_wrong_source_is_the_sources_fault(
    at: Provider, source: bytes | None, code: str, knows_md5: bool
) -> None:
    with pytest.raises(SourceError) as caught:
        copy(at, source, knows_md5=knows_md5)
    assert caught.value.code == code
