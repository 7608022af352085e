"""A channel with switches, for tests: calls can be made to fail, to wait, and are counted."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from shared.core.clock import Deadline
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

#: Seconds that a held call waits to be let go, so that a test which forgets it ends.
_LONGEST_HOLD_SECONDS = 60.0


class Gate:
    """A place where a call waits until the test lets it go."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    def release(self) -> None:
        """Let the call go on."""
        self._open.set()

    def pass_through(self) -> None:
        """Wait here (the call's side)."""
        self.reached.set()
        self._open.wait(_LONGEST_HOLD_SECONDS)


class FaultyChannel:
    """Behaves as `inner` but for the faults that a test orders, by the name of the call."""

    def __init__(self, inner: Channel) -> None:
        self.inner = inner
        #: How often each call was made, failed ones included.
        self.calls: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._next: defaultdict[str, deque[BaseException]] = defaultdict(deque)
        self._always: dict[str, BaseException] = {}
        self._gates: dict[str, Gate] = {}

    def fail_next(self, call: str, error: BaseException, *, times: int = 1) -> None:
        """Let the next `times` calls of this name raise `error` instead of doing anything."""
        with self._lock:
            self._next[call].extend([error] * times)

    def fail_always(self, error: BaseException, *calls: str) -> None:
        """Let these calls (none named: all) raise `error` until `heal`."""
        with self._lock:
            for call in calls or ("*",):
                self._always[call] = error

    def heal(self) -> None:
        """Take back all orders."""
        with self._lock:
            self._next.clear()
            self._always.clear()
            for gate in self._gates.values():
                gate.release()
            self._gates.clear()

    def hold(self, call: str) -> Gate:
        """Let the next call of this name wait before it does anything."""
        gate = Gate()
        with self._lock:
            self._gates[call] = gate
        return gate

    def _meet(self, call: str) -> None:
        with self._lock:
            self.calls[call] += 1
            gate = self._gates.pop(call, None)
        if gate is not None:
            gate.pass_through()
        with self._lock:
            error = self._next[call].popleft() if self._next[call] else None
            error = error or self._always.get(call) or self._always.get("*")
        if error is not None:
            raise error

    @property
    def name(self) -> str:
        """See Channel.name."""
        return self.inner.name

    @property
    def kind(self) -> str:
        """See Channel.kind."""
        return self.inner.kind

    @property
    def capabilities(self) -> Capabilities:
        """See Channel.capabilities."""
        return self.inner.capabilities

    def prepare(self, *, deadline: Deadline) -> None:
        """See Channel.prepare."""
        self._meet("prepare")
        self.inner.prepare(deadline=deadline)

    def put(
        self, key: str, body: Body, *, sha256: str, if_absent: bool = False, deadline: Deadline
    ) -> Stored:
        """See Channel.put."""
        self._meet("put")
        return self.inner.put(key, body, sha256=sha256, if_absent=if_absent, deadline=deadline)

    @contextmanager
    def get(
        self, key: str, *, start: int = 0, length: int | None = None, deadline: Deadline
    ) -> Iterator[Iterator[bytes]]:
        """See Channel.get."""
        self._meet("get")
        with self.inner.get(key, start=start, length=length, deadline=deadline) as chunks:
            yield chunks

    def head(self, key: str, *, deadline: Deadline) -> Found | None:
        """See Channel.head."""
        self._meet("head")
        return self.inner.head(key, deadline=deadline)

    def delete(self, key: str, *, deadline: Deadline) -> None:
        """See Channel.delete."""
        self._meet("delete")
        self.inner.delete(key, deadline=deadline)

    def list(self, prefix: str = "", *, after: str = "", deadline: Deadline) -> Iterator[Entry]:
        """See Channel.list."""
        self._meet("list")
        return self.inner.list(prefix, after=after, deadline=deadline)

    def copy(self, source: str, key: str, *, deadline: Deadline) -> Stored:
        """See Channel.copy."""
        self._meet("copy")
        return self.inner.copy(source, key, deadline=deadline)

    def remote(self, key: str) -> Remote:
        """See Channel.remote."""
        return self.inner.remote(key)

    def copy_remote(self, source: Remote, key: str, *, sha256: str, deadline: Deadline) -> Stored:
        """See Channel.copy_remote."""
        self._meet("copy_remote")
        return self.inner.copy_remote(source, key, sha256=sha256, deadline=deadline)

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
        self._meet("copy_part")
        return self.inner.copy_part(
            source, key, upload_id, number, offset=offset, length=length, deadline=deadline
        )

    def create_upload(self, key: str, *, sha256: str = "", deadline: Deadline) -> str:
        """See Channel.create_upload."""
        self._meet("create_upload")
        return self.inner.create_upload(key, sha256=sha256, deadline=deadline)

    def put_part(
        self, key: str, upload_id: str, number: int, body: Body, *, offset: int, deadline: Deadline
    ) -> Part:
        """See Channel.put_part."""
        self._meet("put_part")
        return self.inner.put_part(key, upload_id, number, body, offset=offset, deadline=deadline)

    def list_parts(self, key: str, upload_id: str, *, deadline: Deadline) -> Iterator[Part]:
        """See Channel.list_parts."""
        self._meet("list_parts")
        return self.inner.list_parts(key, upload_id, deadline=deadline)

    def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[Part], *, deadline: Deadline
    ) -> Stored:
        """See Channel.complete_upload."""
        self._meet("complete_upload")
        return self.inner.complete_upload(key, upload_id, parts, deadline=deadline)

    def abort_upload(self, key: str, upload_id: str, *, deadline: Deadline) -> None:
        """See Channel.abort_upload."""
        self._meet("abort_upload")
        self.inner.abort_upload(key, upload_id, deadline=deadline)

    def list_uploads(self, *, deadline: Deadline) -> Iterator[OpenUpload]:
        """See Channel.list_uploads."""
        self._meet("list_uploads")
        return self.inner.list_uploads(deadline=deadline)

    def probe(self, *, deadline: Deadline) -> None:
        """See Channel.probe."""
        self._meet("probe")
        self.inner.probe(deadline=deadline)

    def sweep_partial(self, *, minimum_age_seconds: float, deadline: Deadline) -> int:
        """See Channel.sweep_partial."""
        self._meet("sweep_partial")
        return self.inner.sweep_partial(minimum_age_seconds=minimum_age_seconds, deadline=deadline)
