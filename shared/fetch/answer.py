"""One request and its answer on one connection: HTTP/1.1 by h11, bytes as they are on the wire.

Nothing is decompressed, whatever the other side says of the content.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import h11

from shared.core.clock import Deadline
from shared.fetch.errors import FetchTooLarge, FetchUnavailable
from shared.fetch.limits import FetchLimits
from shared.fetch.urls import Target
from shared.fetch.wire import Wire

#: Answers that have no body, whatever length they name.
_BODILESS = frozenset({204, 304})
CHUNK_BYTES = 128 * 1024
_HEAD_CHUNK_BYTES = 16 * 1024
#: Interim answers (100, 103) before the real one.
_MAX_INTERIM = 8
#: Seconds to look whether more comes than was announced; who closes as asked ends this at once.
_LINGER_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Hop:
    """One connection that was made: the host that was asked for, and the address that it had.

    `permitted_by` is the entry of the operator's allow-list that let it be made, '' for none.
    """

    host: str
    port: int
    address: str
    permitted_by: str = ""


class Answer:
    """The head of an answer, and its body while the connection is open.

    `headers` have small-letter names; repeated ones are joined by commas. `length` is what was
    announced, None when nothing was. `hops` are the connections; the last one gave the answer.
    """

    def __init__(self, exchange: Exchange, *, target: Target, hops: tuple[Hop, ...]) -> None:
        head = exchange.head
        self.status = int(head.status_code)
        self.headers = _joined(head.headers)
        self.url = target.url
        self.hops = hops
        self._exchange = exchange

    @property
    def length(self) -> int | None:
        """The announced length of the body."""
        return self._exchange.length

    def chunks(self) -> Iterator[bytes]:
        """Yield the body as it comes, once.

        Raises FetchTooLarge, FetchUnavailable (`body_short`, `body_long`: not as announced) and
        FetchTimeout.
        """
        return self._exchange.body()

    def read(self) -> bytes:
        """Return all of the body; the caller's limits bound it."""
        return b"".join(self.chunks())


class Exchange:
    """One request on a fresh connection, which is closed after it."""

    def __init__(self, wire: Wire, limits: FetchLimits) -> None:
        self._wire = wire
        self._limits = limits
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=limits.max_head_bytes)
        self._chunk_bytes = _HEAD_CHUNK_BYTES
        self._head_ends = Deadline()
        self.head: h11.Response
        self.length: int | None = None

    def ask(
        self, method: str, target: Target, headers: Mapping[str, str], body: bytes | None
    ) -> None:
        """Send the request and read the head of its answer."""
        sent = {
            "host": target.host_header,
            "user-agent": "cloudblox",
            "accept": "*/*",
            **headers,
            "accept-encoding": "identity",
            "connection": "close",
        }
        if body is not None:
            sent["content-length"] = str(len(body))
        events: list[h11.Event] = [
            h11.Request(method=method, target=target.path, headers=list(sent.items()))
        ]
        if body:
            events.append(h11.Data(data=body))
        events.append(h11.EndOfMessage())
        data = b"".join(self._http.send(event) or b"" for event in events)
        try:
            self._wire.send(data, seconds=self._limits.idle_seconds)
        except FetchUnavailable as error:
            # Who refuses a request may answer and close before it has read all of it.
            if error.code != "connection_broken":
                raise
        self._head_ends = Deadline(self._limits.head_seconds)
        self.head = self._read_head()
        announced = dict(self.head.headers).get(b"content-length")
        if announced is not None and method != "HEAD" and self.head.status_code not in _BODILESS:
            self.length = int(announced)

    def _read_head(self) -> h11.Response:
        for _ in range(_MAX_INTERIM):
            event = self._next(head=True)
            if isinstance(event, h11.Response):
                size = sum(len(name) + len(value) + 4 for name, value in event.headers)
                if size > self._limits.max_head_bytes:
                    raise _no_answer("the answer's head is too large")
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise _no_answer("the answer did not come")
        raise _no_answer("the answer did not come")

    def body(self) -> Iterator[bytes]:
        """Yield the body, bounded and compared with what was announced."""
        most, length = self._limits.max_body_bytes, self.length
        if most is not None and length is not None and length > most:
            raise _too_large(most)
        self._chunk_bytes = CHUNK_BYTES
        received = 0
        while True:
            try:
                event = self._next(head=False)
            except FetchUnavailable as error:
                if length is not None and received < length and error.code != "idle_timeout":
                    raise _short(received, length) from error
                raise
            if isinstance(event, h11.EndOfMessage):
                break
            if not isinstance(event, h11.Data):
                raise _short(received, length)
            received += len(event.data)
            if most is not None and received > most:
                raise _too_large(most)
            yield bytes(event.data)
        if length is not None and received != length:
            raise _short(received, length)
        if length is not None and self._is_more():
            raise FetchUnavailable(
                "the body is longer than announced", code="body_long", announced=length
            )

    def _is_more(self) -> bool:
        trailing, _ = self._http.trailing_data
        return bool(trailing) or self._wire.has_more(seconds=_LINGER_SECONDS)

    def _next(self, *, head: bool) -> h11.Event | type[h11.PAUSED]:
        code = "head_timeout" if head else "idle_timeout"
        try:
            while True:
                event = self._http.next_event()
                if event is not h11.NEED_DATA:
                    return event  # type: ignore[return-value]
                seconds = self._limits.idle_seconds
                if head:
                    seconds = self._head_ends.remaining(seconds)
                data = self._wire.receive(self._chunk_bytes, seconds=seconds, code=code)
                self._http.receive_data(data)
        except h11.RemoteProtocolError as error:
            raise _no_answer(str(error)) from error


def _joined(headers: h11._headers.Headers) -> dict[str, str]:
    joined: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("ascii").lower(), raw_value.decode("latin-1")
        joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return joined


def _no_answer(reason: str) -> FetchUnavailable:
    return FetchUnavailable("what came is no answer", code="answer_broken", reason=reason[:200])


def _short(received: int, length: int | None) -> FetchUnavailable:
    return FetchUnavailable(
        "the body ended early", code="body_short", received=received, announced=length
    )


def _too_large(most: int) -> FetchTooLarge:
    return FetchTooLarge(f"the answer has more than {most} bytes", limit_bytes=most)
