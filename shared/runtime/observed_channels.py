"""Channels whose calls and bytes are counted. Everything else about them is as it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from shared.core.clock import Deadline
from shared.core.errors import BloxError
from shared.runtime.metrics import Metrics
from shared.storage.body import Body
from shared.storage.channel import (
    Capabilities,
    Channel,
    Entry,
    Found,
    OpenUpload,
    Part,
    Remote,
    Stored,
)
from shared.storage.registry import Channels, OpenChannel
from shared.storage.spec import ChannelSpec

IN, OUT = "in", "out"


class ChannelMeter:
    """The two counters. One per process."""

    def __init__(self, metrics: Metrics) -> None:
        self._requests = metrics.counter(
            "channel_requests", "Calls of channels", "channel", "operation", "result"
        )
        self._bytes = metrics.counter(
            "channel_bytes", "Bytes to (out) and from (in) channels", "channel", "direction"
        )

    @contextmanager
    def call(self, channel: str, operation: str) -> Iterator[None]:
        """Count one call by how it ends: `ok`, or the code of its error."""
        result = "error"
        try:
            yield
            result = "ok"
        except BloxError as error:
            result = error.code
            raise
        except GeneratorExit:
            # The reader has seen enough.
            result = "ok"
            raise
        finally:
            self._requests.labels(channel, operation, result).inc()

    def moved(self, channel: str, direction: str, count: int) -> None:
        """Count bytes."""
        self._bytes.labels(channel, direction).inc(count)


class ObservedChannels(Channels):
    """See Channels; what it opens is counted by `meter`."""

    def __init__(self, meter: ChannelMeter) -> None:
        super().__init__()
        self._meter = meter
        self._observed: dict[str, tuple[OpenChannel, OpenChannel]] = {}

    def open(self, spec: ChannelSpec) -> OpenChannel:
        """See Channels.open."""
        opened = super().open(spec)
        known = self._observed.get(spec.name)
        if known is not None and known[0] is opened:
            return known[1]
        observed = replace(opened, channel=ObservedChannel(opened.channel, self._meter))
        self._observed[spec.name] = (opened, observed)
        return observed


class ObservedChannel:
    """See Channel."""

    def __init__(self, inner: Channel, meter: ChannelMeter) -> None:
        self._inner = inner
        self._meter = meter

    @property
    def name(self) -> str:
        """See Channel.name."""
        return self._inner.name

    @property
    def kind(self) -> str:
        """See Channel.kind."""
        return self._inner.kind

    @property
    def capabilities(self) -> Capabilities:
        """See Channel.capabilities."""
        return self._inner.capabilities

    def prepare(self, *, deadline: Deadline) -> None:
        """See Channel.prepare."""
        with self._meter.call(self.name, "prepare"):
            self._inner.prepare(deadline=deadline)

    def put(
        self, key: str, body: Body, *, sha256: str, if_absent: bool = False, deadline: Deadline
    ) -> Stored:
        """See Channel.put."""
        with self._meter.call(self.name, "put"):
            stored = self._inner.put(
                key, body, sha256=sha256, if_absent=if_absent, deadline=deadline
            )
        self._meter.moved(self.name, OUT, body.size)
        return stored

    @contextmanager
    def get(
        self, key: str, *, start: int = 0, length: int | None = None, deadline: Deadline
    ) -> Iterator[Iterator[bytes]]:
        """See Channel.get."""
        with (
            self._meter.call(self.name, "get"),
            self._inner.get(key, start=start, length=length, deadline=deadline) as chunks,
        ):
            yield self._measured(chunks)

    def head(self, key: str, *, deadline: Deadline) -> Found | None:
        """See Channel.head."""
        with self._meter.call(self.name, "head"):
            return self._inner.head(key, deadline=deadline)

    def delete(self, key: str, *, deadline: Deadline) -> None:
        """See Channel.delete."""
        with self._meter.call(self.name, "delete"):
            self._inner.delete(key, deadline=deadline)

    def list(self, prefix: str = "", *, after: str = "", deadline: Deadline) -> Iterator[Entry]:
        """See Channel.list."""
        with self._meter.call(self.name, "list"):
            yield from self._inner.list(prefix, after=after, deadline=deadline)

    def copy(self, source: str, key: str, *, deadline: Deadline) -> Stored:
        """See Channel.copy."""
        with self._meter.call(self.name, "copy"):
            return self._inner.copy(source, key, deadline=deadline)

    def remote(self, key: str) -> Remote:
        """See Channel.remote."""
        return self._inner.remote(key)

    def copy_remote(self, source: Remote, key: str, *, sha256: str, deadline: Deadline) -> Stored:
        """See Channel.copy_remote."""
        with self._meter.call(self.name, "copy_remote"):
            return self._inner.copy_remote(source, key, sha256=sha256, deadline=deadline)

    def copy_part(
        self,
        source: Remote,
        key: str,
        upload_id: str,
        number: int,
        *,
        offset: int,
        length: int,
        deadline: Deadline,
    ) -> Part:
        """See Channel.copy_part."""
        with self._meter.call(self.name, "copy_part"):
            return self._inner.copy_part(
                source, key, upload_id, number, offset=offset, length=length, deadline=deadline
            )

    def create_upload(self, key: str, *, sha256: str = "", deadline: Deadline) -> str:
        """See Channel.create_upload."""
        with self._meter.call(self.name, "create_upload"):
            return self._inner.create_upload(key, sha256=sha256, deadline=deadline)

    def put_part(
        self, key: str, upload_id: str, number: int, body: Body, *, offset: int, deadline: Deadline
    ) -> Part:
        """See Channel.put_part."""
        with self._meter.call(self.name, "put_part"):
            part = self._inner.put_part(
                key, upload_id, number, body, offset=offset, deadline=deadline
            )
        self._meter.moved(self.name, OUT, body.size)
        return part

    def list_parts(self, key: str, upload_id: str, *, deadline: Deadline) -> Iterator[Part]:
        """See Channel.list_parts."""
        with self._meter.call(self.name, "list_parts"):
            yield from self._inner.list_parts(key, upload_id, deadline=deadline)

    def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[Part], *, deadline: Deadline
    ) -> Stored:
        """See Channel.complete_upload."""
        with self._meter.call(self.name, "complete_upload"):
            return self._inner.complete_upload(key, upload_id, parts, deadline=deadline)

    def abort_upload(self, key: str, upload_id: str, *, deadline: Deadline) -> None:
        """See Channel.abort_upload."""
        with self._meter.call(self.name, "abort_upload"):
            self._inner.abort_upload(key, upload_id, deadline=deadline)

    def list_uploads(self, *, deadline: Deadline) -> Iterator[OpenUpload]:
        """See Channel.list_uploads."""
        with self._meter.call(self.name, "list_uploads"):
            yield from self._inner.list_uploads(deadline=deadline)

    def sweep_partial(self, *, minimum_age_seconds: float, deadline: Deadline) -> int:
        """See Channel.sweep_partial."""
        with self._meter.call(self.name, "sweep_partial"):
            return self._inner.sweep_partial(
                minimum_age_seconds=minimum_age_seconds, deadline=deadline
            )

    def probe(self, *, deadline: Deadline) -> None:
        """See Channel.probe."""
        with self._meter.call(self.name, "probe"):
            self._inner.probe(deadline=deadline)

    def _measured(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self._meter.moved(self.name, IN, len(chunk))
            yield chunk
