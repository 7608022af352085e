"""The one mapping from what boto3 and urllib3 raise to the errors of channels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import urllib3.exceptions
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    ReadTimeoutError,
)
from botocore.parsers import ResponseParserError

from shared.core.errors import BloxError
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
from shared.storage.s3_transport import Transport

_BY_CODE: dict[str, type[ChannelError]] = {
    "NoSuchKey": ObjectMissing,
    "NoSuchUpload": UploadGone,
    "PreconditionFailed": KeyTaken,
    "ConditionalRequestConflict": KeyTaken,
    "BadDigest": DamagedOnTheWay,
    "InvalidDigest": DamagedOnTheWay,
    "XAmzContentSHA256Mismatch": DamagedOnTheWay,
    "XAmzContentChecksumMismatch": DamagedOnTheWay,
    "IncompleteBody": DamagedOnTheWay,
    "SlowDown": ChannelThrottled,
    "Throttling": ChannelThrottled,
    "ThrottlingException": ChannelThrottled,
    "RequestLimitExceeded": ChannelThrottled,
    "TooManyRequests": ChannelThrottled,
    "RequestTimeout": ChannelTimeout,
    "RequestTimeTooSkewed": ChannelUnavailable,
    "OperationAborted": ChannelUnavailable,
    "QuotaExceeded": ChannelFull,
    "InsufficientCapacity": ChannelFull,
    "XMinioStorageFull": ChannelFull,
}
_BY_STATUS: dict[int, type[ChannelError]] = {
    408: ChannelTimeout,
    412: KeyTaken,
    429: ChannelThrottled,
    507: ChannelFull,
}
_TIMEOUTS = (
    TimeoutError,
    urllib3.exceptions.TimeoutError,
    ConnectTimeoutError,
    ReadTimeoutError,
)
#: Seconds that a Retry-After may ask for.
_LONGEST_PATIENCE_SECONDS = 300.0


@contextmanager
def mapped(transport: Transport, *, channel: str, action: str, key: str) -> Iterator[None]:
    """Turn everything that a call in the body raises into an error of `shared.storage.errors`."""
    facts: dict[str, Any] = {"channel": channel, "action": action, "key": key}
    try:
        yield
    except BloxError:
        raise
    except ClientError as error:
        raise from_answer(error, **facts) from error
    except KeyError as error:
        raise ChannelUnavailable(
            f"channel {channel}: the answer to {action} lacks {error}",
            code="strange_answer",
            **facts,
        ) from error
    except (ValueError, ResponseParserError) as error:
        raise ChannelUnavailable(
            f"channel {channel}: the answer to {action} cannot be read",
            code="strange_answer",
            reason=str(error),
            **facts,
        ) from error
    except (BotoCoreError, urllib3.exceptions.HTTPError, OSError) as error:
        message = f"channel {channel}: {type(error).__name__} in {action}"
        if not _is_timeout(error):
            raise ChannelUnavailable(message, reason=str(error), **facts) from error
        if transport.had_fair_chance():
            raise ChannelTimeout(message, reason=str(error), **facts) from error
        raise DeadlinePassed(message, reason=str(error), **facts) from error


def from_answer(error: ClientError, *, channel: str, action: str, key: str) -> ChannelError:
    """Return the channel error that the provider's answer means."""
    said = error.response.get("Error", {})
    meta = error.response.get("ResponseMetadata", {})
    code, status = str(said.get("Code", "")), int(meta.get("HTTPStatusCode", 0))
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status)
    if kind is None:
        # 2xx: an error inside an answer that began well, as copies and completions may have.
        kind = ChannelRefused if 300 <= status < 500 else ChannelUnavailable
    facts: dict[str, Any] = {
        "channel": channel,
        "action": action,
        "key": key,
        "provider_code": code,
        "status": status,
    }
    message = f"channel {channel}: {code or status} {said.get('Message') or ''}".rstrip()
    if kind is ChannelThrottled:
        headers = meta.get("HTTPHeaders", {})
        return ChannelThrottled(
            message, retry_after_seconds=_patience(headers.get("retry-after", "")), **facts
        )
    return kind(message, **facts)


def _patience(text: str) -> float:
    try:
        return min(_LONGEST_PATIENCE_SECONDS, max(0.0, float(text)))
    except ValueError:
        return 1.0


def _is_timeout(error: BaseException) -> bool:
    """Tell whether a time limit is behind the error, at whatever depth urllib3 wrapped it."""
    seen: BaseException | None = error
    for _ in range(5):
        if isinstance(seen, _TIMEOUTS):
            # A refused connection is derived from a timed-out one there.
            return not isinstance(seen, urllib3.exceptions.NewConnectionError)
        if seen is None:
            return False
        inner = next((arg for arg in seen.args if isinstance(arg, BaseException)), None)
        seen = inner or seen.__cause__
    return False
