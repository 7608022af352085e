"""Runs the reviewers that read content in a process of their own, with limits, and kills it.

Attackers choose the content: whatever it does to a parser stays in that process, which sees no
settings, no secrets and no files of ours.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
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
    )
    try:
        os.set_blocking(_input(process).fileno(), False)
        yield process
    finally:
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
        status = process.poll()
        raise SandboxFailed(f"the reviewer ended without an answer (status {status})") from error


def _wait_ready(descriptor: int, event: int, end: Deadline) -> bool:
    if end.expired():
        raise SandboxFailed("the reviewer took too long")
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(end.remaining(at_most=_TICK_SECONDS) * 1000))


def _input(process: subprocess.Popen[bytes]) -> Any:
    if process.stdin is None:
        raise AssertionError("started without a pipe")
    return process.stdin
