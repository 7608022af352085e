"""ClamAV by its daemon: the INSTREAM command of clamd's protocol, over a socket or TCP.

The bytes go in chunks with their length before them, and a length of 0 ends them; one line comes
back. The daemon parses the content, this process only passes it on.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from shared.core.clock import Deadline
from shared.core.errors import InvalidError, UnavailableError

_CHUNK_BYTES = 64 * 1024
#: Seconds for which a call may block before the execution is asked whether to stop.
_TICK_SECONDS = 0.5
_CONNECT_SECONDS = 3.0
_MOST_ANSWER_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Answer:
    """What clamd said: neither is set when the content is clean."""

    virus: str | None = None
    error: str | None = None


def parse_address(address: str) -> str | tuple[str, int]:
    """Read `unix:/path` or `tcp://host:port`. Raises InvalidError (`clamd_invalid`)."""
    if address.startswith("unix:/"):
        return address.removeprefix("unix:")
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if not (address.startswith("tcp://") and host and port.isdigit() and 0 < int(port) < 65536):
        raise InvalidError(
            "clamd is addressed as unix:/path or tcp://host:port", code="clamd_invalid"
        )
    return host.strip("[]"), int(port)


def scan(
    address: str, content: Iterable[bytes], *, deadline: Deadline, check: Callable[[], None]
) -> Answer:
    """Send the content and return the answer.

    Raises UnavailableError when clamd does not answer in time, and whatever `content` or `check`
    raises.
    """
    with _connected(address, deadline) as line:
        try:
            _send(line, b"zINSTREAM\0", deadline, check)
            for chunk in content:
                for start in range(0, len(chunk), _CHUNK_BYTES):
                    piece = chunk[start : start + _CHUNK_BYTES]
                    _send(line, struct.pack("!I", len(piece)) + piece, deadline, check)
            _send(line, struct.pack("!I", 0), deadline, check)
        except (BrokenPipeError, ConnectionResetError):
            # It has said why it takes no more.
            pass
        return parse_answer(_receive(line, deadline, check))


def parse_answer(line: bytes) -> Answer:
    """Read clamd's line. Raises UnavailableError when it is none."""
    text = line.rstrip(b"\0\r\n").decode("utf-8", "replace").strip()
    said = text.removeprefix("stream:").strip()
    if said == "OK":
        return Answer()
    if said.endswith(" FOUND"):
        return Answer(virus=said.removesuffix(" FOUND")[:200])
    if text.endswith("ERROR"):
        return Answer(error=f"clamd: {text[:200]}")
    raise UnavailableError("clamd gave no answer", code="clamd_unavailable", said=text[:200])


@contextmanager
def _connected(address: str, deadline: Deadline) -> Iterator[socket.socket]:
    place = parse_address(address)
    seconds = deadline.remaining(at_most=_CONNECT_SECONDS)
    try:
        if isinstance(place, str):
            line = _connected_unix(place, seconds)
        else:
            line = socket.create_connection(place, timeout=seconds)
    except OSError as error:
        raise _unavailable(str(error)) from error
    with line:
        line.settimeout(_TICK_SECONDS)
        yield line


def _connected_unix(path: str, seconds: float) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.settimeout(seconds)
        line.connect(path)
    except OSError:
        line.close()
        raise
    return line


def _send(line: socket.socket, data: bytes, deadline: Deadline, check: Callable[[], None]) -> None:
    view = memoryview(data)
    while view:
        _go_on(deadline, check)
        try:
            view = view[line.send(view) :]
        except TimeoutError:
            continue
        except (BrokenPipeError, ConnectionResetError):
            raise
        except OSError as error:
            raise _unavailable(str(error)) from error


def _receive(line: socket.socket, deadline: Deadline, check: Callable[[], None]) -> bytes:
    said = b""
    while b"\0" not in said and len(said) < _MOST_ANSWER_BYTES:
        _go_on(deadline, check)
        try:
            part = line.recv(_MOST_ANSWER_BYTES)
        except TimeoutError:
            continue
        except OSError as error:
            raise _unavailable(str(error)) from error
        if not part:
            break
        said += part
    return said.partition(b"\0")[0]


def _go_on(deadline: Deadline, check: Callable[[], None]) -> None:
    check()
    if deadline.expired():
        raise _unavailable("it took too long")


def _unavailable(reason: str) -> UnavailableError:
    return UnavailableError(f"clamd does not answer: {reason}", code="clamd_unavailable")
