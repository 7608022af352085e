"""Makes channels from their specs and keeps them, one of each per process."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

from shared.core.clock import Deadline
from shared.core.errors import InvalidError
from shared.storage.bandwidth import TokenBucket
from shared.storage.breaker import Breaker
from shared.storage.channel import Channel
from shared.storage.file import FileChannel
from shared.storage.guarded import GuardedChannel
from shared.storage.spec import ChannelSpec, FileSettings, Tuning, read_own, read_tuning

#: Parts under way at once where the spec leaves it open. Two hide the round trips of a network; on
#: a disk one keeps the order.
_PARALLEL_PARTS = {"file": 1, "s3": 2}


@dataclass(frozen=True, slots=True)
class OpenChannel:
    """A channel with what goes with it.

    `breaker` tells whether it may be sent bytes, `read_breaker` whether it may be asked for them.
    """

    channel: Channel
    breaker: Breaker
    read_breaker: Breaker
    part_bytes: int
    parallel_parts: int
    upload_limit: TokenBucket | None
    download_limit: TokenBucket | None
    #: Executions that may use it at a time, over all processes; 0 is no limit.
    max_running: int = 0

    @property
    def name(self) -> str:
        """The channel's name."""
        return self.channel.name

    def ready(self) -> bool:
        """Tell whether bytes may be sent and proven now; changes nothing."""
        return self.breaker.ready() and self.read_breaker.ready()

    def retry_after_seconds(self) -> float:
        """Return the seconds until they may."""
        return max(self.breaker.retry_after_seconds(), self.read_breaker.retry_after_seconds())

    def silent_seconds(self) -> float:
        """Return for how long the channel has let calls of either kind wait without any sign."""
        return max(self.breaker.silent_seconds(), self.read_breaker.silent_seconds())

    @classmethod
    def around(cls, channel: Channel, tuning: Tuning | None = None) -> OpenChannel:
        """Put breaker and limits around a bare channel."""
        tuning = tuning or Tuning()
        breaker, read_breaker = (
            Breaker(
                channel.name,
                failures=tuning.breaker_failures,
                open_seconds=tuning.breaker_open_seconds,
            )
            for _ in range(2)
        )
        rate = tuning.bandwidth_bytes_per_second
        return cls(
            channel=GuardedChannel(channel, breaker, reads=read_breaker),
            breaker=breaker,
            read_breaker=read_breaker,
            part_bytes=tuning.part_bytes,
            parallel_parts=tuning.parallel_parts or _PARALLEL_PARTS.get(channel.kind, 1),
            upload_limit=TokenBucket(rate) if rate else None,
            download_limit=TokenBucket(rate) if rate else None,
            max_running=tuning.max_running,
        )


class Channels:
    """The channels that this process uses. Thread-safe; make one per process.

    A spec that changed gives a new channel; the old one goes on serving those that hold it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, tuple[ChannelSpec, OpenChannel]] = {}

    def open(self, spec: ChannelSpec) -> OpenChannel:
        """Return the channel of a spec; InvalidError if the spec is wrong. Touches no network."""
        with self._lock:
            known = self._open.get(spec.name)
            if known is not None and known[0] == spec:
                return known[1]
            opened = OpenChannel.around(open_channel(spec), read_tuning(spec))
            self._open[spec.name] = (replace(spec), opened)
            return opened


def open_channel(spec: ChannelSpec) -> Channel:
    """Make a bare channel, without breaker and limits; for tools and tests."""
    if spec.kind == "file":
        file = read_own(spec, FileSettings)
        return FileChannel(file.root, name=spec.name, create=file.create)
    if spec.kind == "s3":
        # boto3 takes a quarter of a second and 20 MB to import: not for those who use directories
        # only.
        from shared.storage.s3 import S3Channel
        from shared.storage.s3_client import S3Settings

        return S3Channel(read_own(spec, S3Settings), name=spec.name)
    raise InvalidError(
        f"channel {spec.name}: there is no kind {spec.kind!r}",
        code="invalid_channel",
        channel=spec.name,
        setting="kind",
    )


def check_spec(spec: ChannelSpec) -> None:
    """Raise InvalidError, naming the setting, if a spec cannot be right. Touches nothing."""
    read_tuning(spec)
    if spec.kind == "file":
        read_own(spec, FileSettings)
    else:
        open_channel(spec)


def prepare_channel(spec: ChannelSpec, *, deadline: Deadline) -> None:
    """Make the directory with its marker, or the bucket, unless it is there."""
    open_channel(spec).prepare(deadline=deadline)
