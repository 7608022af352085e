"""What providers answer, and what it means."""

from __future__ import annotations

from typing import Any

import pytest
import urllib3.exceptions as raised
from botocore.exceptions import ClientError, EndpointConnectionError

from shared.core.clock import Deadline
from shared.core.errors import LeaseLost, PermanentError, TransientError
from shared.storage.errors import (
    ChannelError,
    ChannelFull,
    ChannelRefused,
    ChannelThrottled,
    ChannelTimeout,
    ChannelUnavailable,
    DamagedOnTheWay,
    DeadlinePassed,
    KeyTaken,
    ObjectMissing,
    UploadGone,
)
from shared.storage.s3_errors import from_answer, mapped
from shared.storage.s3_transport import Transport


def answer(code: str, status: int, headers: dict[str, str] | None = None) -> ClientError:
    return ClientError(
        {
            "Error": {"Code": code, "Message": "said so"},
            "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers or {}},
        },  # type: ignore[typeddict-item]
        "PutObject",
    )


def meaning(error: ClientError) -> ChannelError:
    return from_answer(error, channel="s", action="put", key="k")


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("NoSuchKey", 404, ObjectMissing),
        ("NoSuchUpload", 404, UploadGone),
        ("NoSuchBucket", 404, ChannelRefused),
        ("404", 404, ChannelRefused),
        ("AccessDenied", 403, ChannelRefused),
        ("SignatureDoesNotMatch", 403, ChannelRefused),
        ("403", 403, ChannelRefused),
        ("EntityTooLarge", 400, ChannelRefused),
        ("PermanentRedirect", 301, ChannelRefused),
        ("PreconditionFailed", 412, KeyTaken),
        ("412", 412, KeyTaken),
        ("ConditionalRequestConflict", 409, KeyTaken),
        ("BadDigest", 400, DamagedOnTheWay),
        ("XAmzContentSHA256Mismatch", 400, DamagedOnTheWay),
        ("IncompleteBody", 400, DamagedOnTheWay),
        ("SlowDown", 503, ChannelThrottled),
        ("429", 429, ChannelThrottled),
        ("RequestTimeout", 400, ChannelTimeout),
        ("RequestTimeTooSkewed", 403, ChannelUnavailable),
        ("QuotaExceeded", 403, ChannelFull),
        ("507", 507, ChannelFull),
        ("InternalError", 500, ChannelUnavailable),
        ("502", 502, ChannelUnavailable),
        ("NotImplemented", 501, ChannelUnavailable),
        ("InternalError", 200, ChannelUnavailable),
    ],
)
def test_an_answer_means_one_error(code: str, status: int, kind: type[ChannelError]) -> None:
    error = meaning(answer(code, status))
    assert type(error) is kind
    assert error.facts["channel"] == "s"
    assert error.facts["status"] == status
    assert isinstance(error, TransientError) != isinstance(error, PermanentError)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), ("0", 0.0), ("99999", 300.0), ("soon", 1.0), ("-5", 0.0), (None, 1.0)],
)
def test_the_patience_that_was_asked_for_is_kept_within_reason(
    header: str | None, seconds: float
) -> None:
    headers = {} if header is None else {"retry-after": header}
    error = meaning(answer("SlowDown", 503, headers))
    assert isinstance(error, ChannelThrottled)
    assert error.retry_after_seconds == seconds


@pytest.fixture
def transport() -> Transport:
    return Transport(
        connect_timeout_seconds=3, read_timeout_seconds=30, connections=1, ca_file=None
    )


def through(transport: Transport, error: BaseException, seconds: float) -> None:
    with (
        mapped(transport, channel="s", action="put", key="k"),
        transport.until(Deadline(seconds), channel="s", action="put", key="k"),
    ):
        raise error


POOL: Any = None
TIMEOUTS = [
    raised.ReadTimeoutError(POOL, "/", "read timed out"),
    raised.ConnectTimeoutError("connect timed out"),
    raised.ProtocolError("Connection aborted.", TimeoutError("timed out")),
    TimeoutError("timed out"),
]


@pytest.mark.parametrize("error", TIMEOUTS, ids=lambda error: type(error).__name__)
def test_a_timeout_is_the_channels_fault_if_it_had_a_fair_chance(
    transport: Transport, error: BaseException
) -> None:
    with pytest.raises(ChannelTimeout):
        through(transport, error, 10)
    with pytest.raises(DeadlinePassed):
        through(transport, error, 1)


@pytest.mark.parametrize(
    "error",
    [
        raised.ProtocolError("Connection aborted.", ConnectionResetError(104, "reset")),
        raised.NewConnectionError(POOL, "refused"),
        raised.SSLError("bad certificate"),
        raised.IncompleteRead(3, 7),
        EndpointConnectionError(endpoint_url="http://127.0.0.1:1"),
        ConnectionRefusedError(111, "refused"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_broken_connection_is_unavailable(transport: Transport, error: BaseException) -> None:
    with pytest.raises(ChannelUnavailable) as caught:
        through(transport, error, 10)
    assert not isinstance(caught.value, ChannelTimeout)


@pytest.mark.parametrize("error", [LeaseLost(), KeyTaken(), ZeroDivisionError()])
def test_other_errors_pass_unchanged(transport: Transport, error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        through(transport, error, 10)
    assert caught.value is error
