"""The errors of channels, drawn as one tree, and the one mapping from OSErrors to it.

ChannelError                 this channel failed: count it, try the next one
├── ChannelUnavailable       does not answer, or answers 5xx          (transient)
│   └── ChannelTimeout       ... within the network limits
├── ChannelThrottled         asks for patience                        (transient)
├── ChannelFull              no room left                             (transient)
├── DamagedOnTheWay          the provider saw other bytes than we sent (transient)
├── BreakerOpen              not even asked: it failed too often      (transient)
├── UploadGone               that multipart upload is not open        (transient)
├── ChannelRefused           credentials, bucket, settings            (permanent)
├── KeyTaken                 the key exists already                   (permanent)
├── ObjectMissing            the key does not exist                   (permanent)
├── InvalidKey               such a key is not allowed                (permanent)
└── ChecksumMismatch         the stored bytes are other bytes         (permanent, corrupt)

Not the channel's fault: DeadlinePassed (the call's time ended before the channel had a fair
chance), SourceUnavailable (the bytes to be stored cannot be read now) and SourceError (they are
gone, short, long or different: no channel can help).
"""

from __future__ import annotations

import errno

from shared.core.errors import (
    BloxError,
    CorruptError,
    PermanentError,
    ThrottledError,
    TransientError,
    UnavailableError,
)


class ChannelError(BloxError):
    """The channel failed."""

    code = "channel_error"


class ChannelUnavailable(ChannelError, UnavailableError):
    """The channel does not answer."""

    code = "channel_unavailable"


class ChannelTimeout(ChannelUnavailable):
    """The channel did not answer in time."""

    code = "channel_timeout"


class ChannelThrottled(ChannelError, ThrottledError):
    """The channel asked for patience."""

    code = "channel_throttled"


class ChannelFull(ChannelError, TransientError):
    """The channel has no room left."""

    code = "channel_full"


class DamagedOnTheWay(ChannelError, TransientError):
    """The bytes were damaged between here and the channel."""

    code = "damaged_on_the_way"


class BreakerOpen(ChannelError, ThrottledError):
    """The channel failed too often and is left alone for a while."""

    code = "breaker_open"


class UploadGone(ChannelError, TransientError):
    """That multipart upload is not open: completed, aborted or never made."""

    code = "upload_gone"


class ChannelRefused(ChannelError, PermanentError):
    """The channel refuses: credentials, bucket or settings are wrong."""

    code = "channel_refused"


class KeyTaken(ChannelError, PermanentError):
    """The key exists already."""

    code = "key_taken"


class ObjectMissing(ChannelError, PermanentError):
    """There is no object with that key on the channel."""

    code = "object_missing"


class InvalidKey(ChannelError, PermanentError):
    """Such a key is not allowed."""

    code = "invalid_key"


class ChecksumMismatch(ChannelError, CorruptError):
    """The bytes on the channel are not the bytes that were to be stored."""

    code = "checksum_mismatch"


class DeadlinePassed(TransientError):
    """The time given to the call ended."""

    code = "deadline_passed"


class SourceUnavailable(UnavailableError):
    """The bytes to be stored cannot be read now."""

    code = "source_unavailable"


class SourceError(CorruptError):
    """The bytes to be stored are missing, short, long or different."""

    code = "source_damaged"


#: Full for whoever writes: no blocks, quota, or a file-size limit.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
#: A person has to change something before it can work.
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP, errno.ENOTDIR})


def from_os_error(error: OSError, *, channel: str, action: str = "", key: str = "") -> ChannelError:
    """Return the channel error that an operating-system error means."""
    detail = error.strerror or str(error)
    kind: type[ChannelError] = ChannelUnavailable
    if error.errno in _FULL:
        kind = ChannelFull
    elif error.errno in _REFUSED:
        kind = ChannelRefused
    return kind(
        f"channel {channel}: {detail}",
        channel=channel,
        errno=error.errno,
        action=action,
        key=key,
    )


def harms_channel(error: BaseException) -> bool:
    """Tell whether an error is a sign that the channel itself is not well (what breakers count)."""
    return isinstance(
        error, ChannelUnavailable | ChannelThrottled | ChannelFull | DamagedOnTheWay
    ) or (type(error) is ChannelRefused)
