"""Sends requests with the time limits of each call instead of one limit per client.

boto3 asks `before-send` handlers for a response before it sends anything itself; ours answers
always. It keeps boto3's connection classes (they know ``Expect: 100-continue``), reads no proxy and
no certificate settings from the environment, and never tries twice.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import urllib3
from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
    AWSPreparedRequest,
    AWSResponse,
)
from botocore.compat import set_socket_timeout
from botocore.httpsession import get_cert_path
from urllib3.util import Retry, Timeout

from shared.core.clock import Deadline
from shared.storage.errors import ChannelUnavailable
from shared.storage.limits import in_time

#: Bytes that one send may take from a body: the clock and the pace are asked between sends.
_SEND_BYTES = 128 * 1024
#: Bytes that one read takes at most.
_READ_BYTES = 1024 * 1024
#: Bytes of an answer that is kept whole. A page of 1,000 long keys, escaped, has some 4 MiB.
_MOST_ANSWER_BYTES = 16 * 1024 * 1024
#: Requests in one bounded call; boto3 asks for a bucket's region when it is sent elsewhere, also in
#: answer to that question.
_MOST_REQUESTS = 3
_NO_RETRIES = Retry(False)
#: Servers that one channel may be sent to, by region; no pool is closed before there are more.
_MOST_ORIGINS = 1000


#: Linux has it.
_QUICK_ACK: int | None = getattr(socket, "TCP_QUICKACK", None)


class _Now(threading.local):
    """What this thread's call may take."""

    channel: str = ""
    deadline: Deadline | None = None
    given_seconds: float = 0.0
    read_seconds: float = 30.0
    requests: int = 0


_now = _Now()


class _SendLimit:
    """urllib3 sends bodies under the *connect* limit; here a socket sends under the read limit.

    A provider that gives an answer away piece by piece may hold the last one until the first was
    acknowledged, for which the kernel takes 40 ms if it is not told to do it at once (Ceph's copies
    and listings). It is told after each request, since it forgets.
    """

    sock: Any
    timeout: Any
    #: botocore's: an answer has come instead of leave to send the body.
    _response_received: bool

    def connect(self) -> None:
        super().connect()  # type: ignore[misc]
        self.sock.settimeout(_now.read_seconds)

    def request(self, *args: Any, **kwargs: Any) -> None:
        if self.sock is not None:
            self.timeout = _now.read_seconds
        super().request(*args, **kwargs)  # type: ignore[misc]
        if _QUICK_ACK is not None and self.sock is not None:
            self.sock.setsockopt(socket.IPPROTO_TCP, _QUICK_ACK, 1)

    def getresponse(self) -> Any:
        response = super().getresponse()  # type: ignore[misc]
        if self._response_received and self.sock is not None:
            # A server may wait for the announced body all the same, and would take the next request
            # for it. The answer is read to its end from its own file; then nothing is left.
            unused, self.sock = self.sock, None
            unused.close()
        return response


class _Connection(_SendLimit, AWSHTTPConnection):  # type: ignore[misc]
    pass


class _SecureConnection(_SendLimit, AWSHTTPSConnection):  # type: ignore[misc]
    pass


class _Pool(AWSHTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(AWSHTTPSConnectionPool):
    ConnectionCls = _SecureConnection


class TimedRaw:
    """A response's bytes, each read under what is left of the deadline."""

    def __init__(
        self, response: urllib3.BaseHTTPResponse, deadline: Deadline, limit_seconds: float
    ) -> None:
        self._response = response
        self._deadline = deadline
        self._limit_seconds = limit_seconds

    def read(self, amt: int | None = None) -> bytes:
        """Read what is there, `amt` bytes at most; None reads all of an answer."""
        if amt is None:
            return b"".join(self.stream())
        in_time(self._deadline, channel=_now.channel, action="read")
        self._limit_read()
        return self._response.read1(min(amt, _READ_BYTES))

    def stream(self, amt: int = _READ_BYTES, **_: Any) -> Iterator[bytes]:
        """Yield an answer that is wanted whole."""
        taken = 0
        while data := self.read(amt):
            taken += len(data)
            if taken > _MOST_ANSWER_BYTES:
                raise _strange("an answer without an end")
            yield data

    def _limit_read(self) -> None:
        try:
            set_socket_timeout(
                self._response, max(0.001, self._deadline.remaining(self._limit_seconds))
            )
        except AttributeError:
            return  # All bytes are here: the connection went back to its pool.

    def close(self) -> None:
        """Let go of it; the connection is of no use any more unless all was read."""
        self._response.close()


def _split(url: str) -> tuple[str, str]:
    """Return the server's part of an address, and what it is asked for."""
    end = url.find("/", url.index("://") + 3)
    return (url, "/") if end < 0 else (url[:end], url[end:])


def _strange(what: str) -> ChannelUnavailable:
    return ChannelUnavailable(
        f"channel {_now.channel}: {what}", code="strange_answer", channel=_now.channel
    )


class Transport:
    """Connections to one endpoint. The deadline of a call is set around it, per thread."""

    def __init__(
        self,
        *,
        connect_timeout_seconds: float,
        read_timeout_seconds: float,
        connections: int,
        ca_file: str | None,
    ) -> None:
        self._connect_timeout_seconds = connect_timeout_seconds
        self._read_timeout_seconds = read_timeout_seconds
        self._pools: dict[str, Any] = {}
        self._manager = urllib3.PoolManager(
            num_pools=_MOST_ORIGINS,
            maxsize=connections,
            block=False,
            blocksize=_SEND_BYTES,
            cert_reqs="CERT_REQUIRED",
            ca_certs=ca_file or get_cert_path(True),
        )
        self._manager.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}

    @contextmanager
    def until(self, deadline: Deadline, *, channel: str, action: str, key: str) -> Iterator[None]:
        """Send the requests of the body under this deadline; DeadlinePassed if none is left."""
        in_time(deadline, channel=channel, action=action, key=key)
        _now.channel = channel
        _now.deadline = deadline
        _now.given_seconds = deadline.remaining()
        _now.requests = 0
        try:
            yield
        finally:
            _now.deadline = None

    def had_fair_chance(self) -> bool:
        """Tell whether this thread's call had at least the time of one connection attempt.

        A call that times out with less says nothing about the channel.
        """
        return _now.given_seconds >= self._connect_timeout_seconds

    def send(self, request: AWSPreparedRequest, **_: Any) -> AWSResponse:
        """Answer boto3's `before-send` event."""
        response, raw = self.exchange(request.method, request.url, request.headers, request.body)
        headers: Any = response.headers
        answer: Any = AWSResponse(request.url, response.status, headers, raw)
        if not request.stream_output:
            _ = answer.content  # Read now, so that the connection goes back to its pool.
        return cast(AWSResponse, answer)

    def exchange(
        self, method: str, url: str, headers: Any, body: Any = None
    ) -> tuple[urllib3.BaseHTTPResponse, TimedRaw]:
        """Send a request and return the answer's head, and its body unread: read or close it."""
        _now.requests += 1
        if _now.requests > _MOST_REQUESTS:
            raise _strange("sent from place to place")
        deadline = _now.deadline or Deadline(self._read_timeout_seconds)
        read_seconds = max(0.001, deadline.remaining(self._read_timeout_seconds))
        _now.read_seconds = read_seconds
        origin, target = _split(url)
        # The manager, asked each time, would take as long as all of the signature.
        pool = self._pools.get(origin)
        if pool is None:
            pool = self._pools[origin] = self._manager.connection_from_url(origin)
        response = pool.urlopen(
            method,
            target,
            body=body,
            headers=headers,
            retries=_NO_RETRIES,
            timeout=Timeout(
                connect=min(self._connect_timeout_seconds, read_seconds), read=read_seconds
            ),
            assert_same_host=False,
            preload_content=False,
            decode_content=False,
        )
        return response, TimedRaw(response, deadline, self._read_timeout_seconds)
