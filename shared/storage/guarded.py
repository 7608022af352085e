"""A channel behind its breakers: each call reports how it went, none passes while they are open.

What brings bytes has a breaker of its own: a channel that is full still gives, and must let go of,
what it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from shared.core.clock import Deadline, monotonic
from shared.storage.body import Body
from shared.storage.breaker import Breaker
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

T = TypeVar("T")

#: A reader that takes longer between two chunks may find its connection closed by the provider,
#: who is not to blame.
SLOW_READER_SECONDS = 5.0


class GuardedChannel:
    """See Channel; raises BreakerOpen without touching the network while a breaker is open.

    `reads` guards all that brings no bytes; without it `breaker` guards everything.
    """

    def __init__(
        self,
        inner: Channel,
        breaker: Breaker,
        *,
        reads: Breaker | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._inner = inner
        self._writes = breaker
        self._reads = reads or breaker
        self._watch = self._reads.watch
        self._clock = clock

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
        with self._writes.watch():
            self._inner.prepare(deadline=deadline)

    def put(
        self, key: str, body: Body, *, sha256: str, if_absent: bool = False, deadline: Deadline
    ) -> Stored:
        """See Channel.put."""
        with self._writes.watch():
            return self._inner.put(
                key, self._moving(body), sha256=sha256, if_absent=if_absent, deadline=deadline
            )

    @contextmanager
    def get(
        self, key: str, *, start: int = 0, length: int | None = None, deadline: Deadline
    ) -> Iterator[Iterator[bytes]]:
        """See Channel.get. What the reader does with the bytes is not the channel's business."""
        opening = self._inner.get(key, start=start, length=length, deadline=deadline)
        with self._watch():
            chunks = opening.__enter__()
        try:
            yield self._each_read(chunks)
        finally:
            opening.__exit__(None, None, None)

    def head(self, key: str, *, deadline: Deadline) -> Found | None:
        """See Channel.head."""
        with self._watch():
            return self._inner.head(key, deadline=deadline)

    def delete(self, key: str, *, deadline: Deadline) -> None:
        """See Channel.delete."""
        with self._watch():
            self._inner.delete(key, deadline=deadline)

    def list(self, prefix: str = "", *, after: str = "", deadline: Deadline) -> Iterator[Entry]:
        """See Channel.list."""
        with self._watch():
            entries = self._inner.list(prefix, after=after, deadline=deadline)
        return self._each(entries)

    def copy(self, source: str, key: str, *, deadline: Deadline) -> Stored:
        """See Channel.copy."""
        with self._writes.watch(is_prompt=False):
            return self._inner.copy(source, key, deadline=deadline)

    def remote(self, key: str) -> Remote:
        """See Channel.remote."""
        return self._inner.remote(key)

    def copy_remote(self, source: Remote, key: str, *, sha256: str, deadline: Deadline) -> Stored:
        """See Channel.copy_remote."""
        with self._writes.watch(is_prompt=False):
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
        with self._writes.watch(is_prompt=False):
            return self._inner.copy_part(
                source, key, upload_id, number, offset=offset, length=length, deadline=deadline
            )

    def create_upload(self, key: str, *, sha256: str = "", deadline: Deadline) -> str:
        """See Channel.create_upload."""
        with self._writes.watch():
            return self._inner.create_upload(key, sha256=sha256, deadline=deadline)

    def put_part(
        self, key: str, upload_id: str, number: int, body: Body, *, offset: int, deadline: Deadline
    ) -> Part:
        """See Channel.put_part."""
        with self._writes.watch():
            return self._inner.put_part(
                key, upload_id, number, self._moving(body), offset=offset, deadline=deadline
            )

    def list_parts(self, key: str, upload_id: str, *, deadline: Deadline) -> Iterator[Part]:
        """See Channel.list_parts."""
        with self._watch():
            parts = self._inner.list_parts(key, upload_id, deadline=deadline)
        return self._each(parts)

    def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[Part], *, deadline: Deadline
    ) -> Stored:
        """See Channel.complete_upload."""
        with self._writes.watch(is_prompt=False):
            return self._inner.complete_upload(key, upload_id, parts, deadline=deadline)

    def abort_upload(self, key: str, upload_id: str, *, deadline: Deadline) -> None:
        """See Channel.abort_upload."""
        with self._watch():
            self._inner.abort_upload(key, upload_id, deadline=deadline)

    def list_uploads(self, *, deadline: Deadline) -> Iterator[OpenUpload]:
        """See Channel.list_uploads."""
        with self._watch():
            uploads = self._inner.list_uploads(deadline=deadline)
        return self._each(uploads)

    def probe(self, *, deadline: Deadline) -> None:
        """See Channel.probe."""
        with self._watch():
            self._inner.probe(deadline=deadline)

    def sweep_partial(self, *, minimum_age_seconds: float, deadline: Deadline) -> int:
        """See Channel.sweep_partial."""
        with self._watch():
            return self._inner.sweep_partial(
                minimum_age_seconds=minimum_age_seconds, deadline=deadline
            )

    def _moving(self, body: Body) -> Body:
        """Return a body that tells the breaker of each chunk that the channel takes."""

        def pace(count: int) -> None:
            body.pace(count)  # Waits for our own limits: that is no silence of the channel's.
            self._writes.moved()

        return Body(body.view(), pace=pace)

    def _each(self, items: Iterator[T]) -> Iterator[T]:
        while True:
            with self._reads.report():
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item

    def _each_read(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        idle_seconds = 0.0
        while True:
            with self._reads.report(is_fair=idle_seconds <= SLOW_READER_SECONDS):
                try:
                    chunk = next(chunks)
                except StopIteration:
                    return
            given_at = self._clock()
            yield chunk
            idle_seconds = self._clock() - given_at
