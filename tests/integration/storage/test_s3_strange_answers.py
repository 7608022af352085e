"""Answers that no S3 gives: each ends in one error of the channel, soon and in bounded memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from shared.core.clock import Deadline
from shared.core.errors import BloxError
from shared.storage.errors import ChannelUnavailable
from tests.integration.storage.test_s3_bad_endpoint import FOUND, calls, channel_at
from tests.support.scripted import Request, Script, Scripted, always, scripted_server

LISTED = (
    b"<ListBucketResult><Contents><Key>a</Key><Size>%s</Size>"
    b"<LastModified>%s</LastModified></Contents></ListBucketResult>"
)
PART = b"<ListPartsResult><Part><PartNumber>%s</PartNumber><Size>3</Size></Part></ListPartsResult>"
ANSWERS: dict[str, Script] = {
    "checksum": always(200, b"", {**FOUND, "x-amz-checksum-sha256": "abc"}),
    "date": always(200, b"", {"ETag": '"e"', "Last-Modified": "yesterday"}),
    "no date": always(200, b"", {"ETag": '"e"'}),
    "size": always(200, LISTED % (b"many", b"2026-01-01T00:00:00Z"), FOUND),
    "time": always(200, LISTED % (b"1", b"99999-01-01T00:00:00Z"), FOUND),
    "part": always(200, PART % b"x", FOUND),
    "part without ETag": always(200, PART % b"1", FOUND),
    "elsewhere": always(301, b"", {"Location": "http://192.0.2.1/"}),
    "partial": always(206, b"abc", {**FOUND, "Content-Range": "bytes 0-2/3"}),
    "no status": always(999, b"", FOUND),
    "deep": always(400, b"<a>" * 5000),
}


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted_server(always(500)) as running:
        yield running


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("checksum", ["md5", "sha256"])
def test_a_strange_answer_is_the_channels_error_or_none(
    server: Scripted, answer: str, checksum: str
) -> None:
    channel = channel_at(server.endpoint, checksum=checksum)
    server.script = ANSWERS[answer]
    for call in calls(channel, Deadline(20)).values():
        before = len(server.requests)
        with contextlib.suppress(BloxError):
            call()
        assert len(server.requests) - before <= 3, "sent from place to place"


@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_without_an_end_is_cut_off(server: Scripted, status: int) -> None:
    sent = 0

    def pour(request: Request) -> None:
        nonlocal sent
        request.answer(status, b"<a>", declared_length=2**40)
        while True:
            sent += request.connection.send(b" " * 2**20)

    server.script = pour
    with pytest.raises(ChannelUnavailable) as caught:
        list(channel_at(server.endpoint).list(deadline=Deadline(20)))
    assert caught.value.code == "strange_answer"
    assert sent < 64 * 2**20
