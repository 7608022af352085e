"""A channel behind its breaker: each call reports how it went, none passes while it is open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from shared.core.clock import Deadline
from shared.storage.body import Body
from shared.storage.breaker import Breaker
from shared.storage.channel import Capabilities, Channel, Entry, Found, OpenUpload, Part, Stored

T = TypeVar("T")


class GuardedChannel:
    """See Channel; raises BreakerOpen without touching the network while the breaker is open."""

    def __init__(self, inner: Channel, breaker: Breaker) -> None:
        self._inner = inner
        self._watch = breaker.watch

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
        with self._watch():
            self._inner.prepare(deadline=deadline)

    def put(
        self, key: str, body: Body, *, sha256: str, if_absent: bool = False, deadline: Deadline
    ) -> Stored:
        """See Channel.put."""
        with self._watch():
            return self._inner.put(key, body, sha256=sha256, if_absent=if_absent, deadline=deadline)

    @contextmanager
    def get(
        self, key: str, *, start: int = 0, length: int | None = None, deadline: Deadline
    ) -> Iterator[Iterator[bytes]]:
        """See Channel.get. What the reader does with the bytes is not the channel's business."""
        opening = self._inner.get(key, start=start, length=length, deadline=deadline)
        with self._watch():
            chunks = opening.__enter__()
        try:
            yield self._each(chunks)
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
        with self._watch():
            return self._inner.copy(source, key, deadline=deadline)

    def create_upload(self, key: str, *, sha256: str = "", deadline: Deadline) -> str:
        """See Channel.create_upload."""
        with self._watch():
            return self._inner.create_upload(key, sha256=sha256, deadline=deadline)

    def put_part(
        self, key: str, upload_id: str, number: int, body: Body, *, offset: int, deadline: Deadline
    ) -> Part:
        """See Channel.put_part."""
        with self._watch():
            return self._inner.put_part(
                key, upload_id, number, body, offset=offset, deadline=deadline
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
        with self._watch():
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

    def _each(self, items: Iterator[T]) -> Iterator[T]:
        while True:
            with self._watch():
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item
