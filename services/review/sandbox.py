"""Runs the reviewers that read content in a process of their own, with limits, and kills it.

Attackers choose the content: whatever it does to a parser stays in that process, which sees no
settings, no secrets and none of our open files. It leads a group of its own, and all of the group
goes with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import services
from services.review.reviewers.finding import Finding, Outcome
from shared.core.clock import Deadline

_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from services.review.reviewers.__main__ import main; main()"
)
#: How often a full pipe looks whether the execution must stop.
_TICK_SECONDS = 0.5
#: The pipe holds 64 KiB; larger pieces would only wait longer between two checks.
_PIECE_BYTES = 64 * 1024
#: Two findings are some hundred bytes; more is no answer of ours.
_MOST_ANSWER_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """What one review may take."""

    seconds: float = 120.0
    cpu_seconds: int = 60
    memory_bytes: int = 512 * 1024 * 1024


class SandboxFailed(Exception):
    """The process gave no answer: killed, crashed or out of a limit. Its text says which."""


def review_content(
    order: Mapping[str, Any],
    content: Iterable[bytes],
    *,
    limits: SandboxLimits,
    deadline: Deadline,
    check: Callable[[], None],
) -> list[Finding]:
    """Give the content to the reviewers and return their findings.

    Raises SandboxFailed when they give none, and whatever `content` or `check` raises; the process
    is gone in every case. Only as much of the content is read as the reviewers want.
    """
    end = deadline.within(limits.seconds)
    header = {
        **order,
        "limits": {"memory_bytes": limits.memory_bytes, "cpu_seconds": limits.cpu_seconds},
    }
    with _process() as process:
        try:
            _feed(process, json.dumps(header).encode() + b"\n", end, check)
            for chunk in content:
                _feed(process, chunk, end, check)
        except BrokenPipeError:
            # It has its answer already, or has died: the answer tells.
            pass
        with contextlib.suppress(BrokenPipeError):
            _input(process).close()
        return _answer(process, end, check)


@contextlib.contextmanager
def _process() -> Iterator[subprocess.Popen[bytes]]:
    root = str(Path(next(iter(services.__path__))).parent)
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", _BOOT, root],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        bufsize=0,
        close_fds=True,
        start_new_session=True,
    )
    try:
        os.set_blocking(_input(process).fileno(), False)
        yield process
    finally:
        # Not reaped before: until then nobody else can have its number.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        process.wait()


def _feed(
    process: subprocess.Popen[bytes], data: bytes, end: Deadline, check: Callable[[], None]
) -> None:
    pipe = _input(process)
    view = memoryview(data)
    while view:
        check()
        _wait_ready(pipe.fileno(), select.POLLOUT, end)
        # None: the pipe filled up between the question and the write.
        written = pipe.write(view[:_PIECE_BYTES])
        view = view[written or 0 :]


def _answer(
    process: subprocess.Popen[bytes], end: Deadline, check: Callable[[], None]
) -> list[Finding]:
    pipe = process.stdout
    if pipe is None:
        raise AssertionError("started without a pipe")
    text = b""
    while True:
        check()
        if not _wait_ready(pipe.fileno(), select.POLLIN, end):
            if _has_ended(process):
                # What it has left running keeps the pipe open.
                break
            continue
        part = os.read(pipe.fileno(), _PIECE_BYTES)
        if not part:
            break
        text += part
        if len(text) > _MOST_ANSWER_BYTES:
            raise SandboxFailed("the reviewer talks without end")
    try:
        found = json.loads(text)
        if not found:
            # Silence is no approval.
            raise ValueError("no finding")
        return [Finding(str(step), Outcome(word), str(detail)) for step, word, detail in found]
    except (ValueError, TypeError, RecursionError) as error:
        raise SandboxFailed(f"the reviewer ended without an answer ({_end_of(process)})") from error


def _end_of(process: subprocess.Popen[bytes]) -> str:
    """Say how it ended; a signal tells which limit it met. It may need a moment to do so."""
    descriptor = os.pidfd_open(process.pid)
    try:
        _poll(descriptor, select.POLLIN, _TICK_SECONDS)
    finally:
        os.close(descriptor)
    found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return "it still runs"
    if found.si_code == os.CLD_EXITED:
        return f"status {found.si_status}"
    return f"killed by {signal.Signals(found.si_status).name}"


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Tell whether it has ended, without reaping it: its group is still to be killed."""
    found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return found is not None


def _wait_ready(descriptor: int, event: int, end: Deadline) -> bool:
    if end.expired():
        raise SandboxFailed("the reviewer took too long")
    return _poll(descriptor, event, end.remaining(at_most=_TICK_SECONDS))


def _poll(descriptor: int, event: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(seconds * 1000))


def _input(process: subprocess.Popen[bytes]) -> Any:
    if process.stdin is None:
        raise AssertionError("started without a pipe")
    return process.stdin
