"""One connection to a pinned address, plain or TLS, on which no wait is longer than it may be."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import ssl
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from shared.fetch.addresses import Address
from shared.fetch.errors import FetchTimeout, FetchUnavailable
from shared.fetch.patience import Patience
from shared.fetch.urls import Target


class Wire:
    """A connected socket. Errors of the network come out as FetchUnavailable."""

    def __init__(self, sock: socket.socket, address: Address, patience: Patience) -> None:
        self._socket = sock
        self._patience = patience
        self.address = address

    def receive(self, most: int, *, seconds: float, code: str = "idle_timeout") -> bytes:
        """Return the next bytes, empty at the end of the stream."""
        message = "the other side is silent for too long"
        for slice_seconds in self._patience.slices(seconds, code=code, message=message):
            try:
                self._socket.settimeout(slice_seconds)
                return self._socket.recv(most)
            except TimeoutError:
                continue
            except OSError as error:
                raise _broken(error) from error
        raise AssertionError("unreachable")

    def send(self, data: bytes, *, seconds: float) -> None:
        """Send all of it; `seconds` bound each silence."""
        view = memoryview(data)
        while view:
            view = view[self._send_some(view, seconds) :]

    def _send_some(self, view: memoryview, seconds: float) -> int:
        message = "the other side does not take the request"
        for slice_seconds in self._patience.slices(seconds, code="send_timeout", message=message):
            try:
                self._socket.settimeout(slice_seconds)
                return self._socket.send(view)
            except TimeoutError:
                continue
            except OSError as error:
                raise _broken(error) from error
        raise AssertionError("unreachable")

    def has_more(self, *, seconds: float) -> bool:
        """Tell whether bytes come within `seconds`, where none should."""
        try:
            return bool(self.receive(1, seconds=seconds))
        except FetchUnavailable:
            return False

    def close(self) -> None:
        """Hang up, without a word."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def connect(
    target: Target,
    addresses: Sequence[Address],
    *,
    patience: Patience,
    seconds: float,
    tls: ssl.SSLContext,
) -> Wire:
    """Connect to the first of these addresses that answers; nothing is looked up again.

    TLS is spoken with the target's name: SNI and certificate are the name's, not the address's.
    """
    limited = patience.within(seconds)
    failure: FetchUnavailable | None = None
    for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
        try:
            sock = _connect_one(address, target.port, limited, seconds / left)
        except FetchUnavailable as error:
            failure = error
            continue
        try:
            if target.scheme == "https":
                sock = _start_tls(sock, target.host, limited, seconds, tls)
        except BaseException:
            sock.close()
            raise
        return Wire(sock, address, patience)
    patience.check()
    raise failure or FetchUnavailable("there is no address to connect to")


def _connect_one(address: Address, port: int, patience: Patience, seconds: float) -> socket.socket:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise FetchUnavailable("no connection", reason=str(error)) from error
    try:
        sock.setblocking(False)
        code = sock.connect_ex((str(address), port))
        if code == errno.EINPROGRESS:
            _wait_until_connected(sock, patience, seconds)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise FetchUnavailable("the connection was refused", reason=errno.errorcode.get(code))
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        sock.close()
        raise
    return sock


def _wait_until_connected(sock: socket.socket, patience: Patience, seconds: float) -> None:
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    message = "the connection was not made in time"
    for slice_seconds in patience.slices(seconds, code="connect_timeout", message=message):
        if poll.poll(slice_seconds * 1000):
            return


def _start_tls(
    sock: socket.socket, host: str, patience: Patience, seconds: float, tls: ssl.SSLContext
) -> socket.socket:
    message = "TLS was not agreed on in time"
    try:
        # Ragged ends are told: a body without a length must not be cut short unseen.
        secure = tls.wrap_socket(
            sock, server_hostname=host, do_handshake_on_connect=False, suppress_ragged_eofs=False
        )
        for slice_seconds in patience.slices(seconds, code="connect_timeout", message=message):
            secure.settimeout(slice_seconds)
            try:
                secure.do_handshake()
            except TimeoutError:
                continue
            return secure
    except ssl.SSLCertVerificationError as error:
        raise FetchUnavailable(
            "the certificate is not the host's",
            code="certificate_invalid",
            reason=error.verify_message,
        ) from error
    except FetchTimeout:
        raise
    except (OSError, ValueError) as error:
        raise FetchUnavailable("TLS failed", code="tls_failed", reason=str(error)) from error
    raise AssertionError("unreachable")


def _broken(error: OSError) -> FetchUnavailable:
    return FetchUnavailable("the connection broke", code="connection_broken", reason=str(error))
