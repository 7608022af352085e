"""Reviewers in a process of their own: answers, limits, and that it is gone afterwards."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from services.review import sandbox
from services.review.reviewers.finding import Finding, Outcome
from services.review.sandbox import SandboxFailed, SandboxLimits, review_content
from shared.core.clock import Deadline
from shared.core.errors import CancelRequested
from tests.support.eventually import eventually

MIB = 1024 * 1024


def run(
    content: Iterable[bytes],
    *,
    size: int = 1,
    limits: SandboxLimits | None = None,
    check: object = lambda: None,
    **order: object,
) -> list[Finding]:
    facts = {"size": size, "sha256": "a" * 64, "content_type": "text/plain"}
    return review_content(
        {
            "reviewer": "built_in",
            "facts": facts,
            "type_mismatch": "reject",
            "reject": [],
            "doubtful": [],
            **order,
        },
        content,
        limits=limits or SandboxLimits(seconds=20),
        deadline=Deadline(30),
        check=check,  # type: ignore[arg-type]
    )


def endless() -> Iterator[bytes]:
    return itertools.repeat(b"hello world " * 8192)


@pytest.fixture(autouse=True)
def no_child_is_left() -> Iterator[None]:
    before = set(psutil.Process().children())
    yield
    assert set(psutil.Process().children()) <= before


def test_answers_arrive() -> None:
    found = run([b"a forbidden thing"], size=17, reject=["forbidden"])
    assert [one.outcome for one in found] == [Outcome.PASS, Outcome.REJECT]


def test_reads_no_more_than_it_needs() -> None:
    found = run(endless(), size=1 << 60)
    assert [one.outcome for one in found] == [Outcome.PASS]


def test_reads_megabytes_with_its_answer_at_the_end() -> None:
    content = [b"x" * MIB] * 8 + [b"forbidden"]
    found = run(content, size=8 * MIB + 9, reject=["forbidden"])
    assert found[-1].outcome is Outcome.REJECT


def test_time_limit() -> None:
    with pytest.raises(SandboxFailed, match="too long"):
        run(endless(), size=1 << 60, reject=["never"], limits=SandboxLimits(seconds=0.5))


def test_processor_limit() -> None:
    limits = SandboxLimits(seconds=30, cpu_seconds=1)
    with pytest.raises(SandboxFailed, match="without an answer"):
        run(endless(), size=1 << 60, reject=["never"], limits=limits)


def test_memory_limit() -> None:
    limits = SandboxLimits(seconds=20, memory_bytes=4 * MIB)
    with pytest.raises(SandboxFailed, match="without an answer"):
        run(endless(), size=1 << 60, reject=["never"], limits=limits)


@pytest.mark.parametrize(
    "program",
    [
        "while True: print('x' * 1000)",
        "print('[' * 50_000)",
        "print('[[1, 2]]')",
        "print('7')",
        'print(\'[["keywords", "fine", ""]]\')',
        "print('[]'); raise SystemExit",
    ],
)
def test_what_content_has_made_of_a_reviewer_is_no_answer(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.review.sandbox._BOOT", program)
    with pytest.raises(SandboxFailed):
        run([b"content"])


def test_a_stop_goes_through_at_once() -> None:
    calls = itertools.count()

    def check() -> None:
        if next(calls) > 3:
            raise CancelRequested

    with pytest.raises(CancelRequested):
        run(endless(), size=1 << 60, reject=["never"], check=check)


def test_a_source_that_fails_goes_through() -> None:
    def broken() -> Iterator[bytes]:
        yield b"hello"
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        run(broken(), size=100, reject=["never"])


def test_the_declared_type_is_judged() -> None:
    found = run([b"\x89PNG\r\n\x1a\n" + bytes(100)], size=108)
    assert found[0].outcome is Outcome.REJECT


#: Begins a process in a group that outlives its parent, unless the group is killed.
_FORKS = """
import os, sys, time
if os.fork() == 0:
    time.sleep(600)
print('[]')
"""


def test_what_it_leaves_running_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child keeps the pipe open; nobody waits for it, and its group is killed."""
    started: list[int] = []
    popen = subprocess.Popen

    def remember(*arguments: Any, **options: Any) -> Any:
        process = popen(*arguments, **options)
        started.append(process.pid)
        return process

    monkeypatch.setattr("services.review.sandbox._BOOT", _FORKS)
    monkeypatch.setattr("services.review.sandbox.subprocess.Popen", remember)
    with pytest.raises(SandboxFailed, match="status 0"):
        run([b"content"])
    (group,) = started
    eventually(lambda: not members(group))


def members(group: int) -> list[int]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def test_one_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.review.sandbox._BOOT", "import time; time.sleep(600)")
    with pytest.raises(SandboxFailed, match="too long"):
        run([b"content"], limits=SandboxLimits(seconds=0.5))


def test_no_descriptor_of_ours_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = (
        "import json, os; fds = sorted(os.listdir('/proc/self/fd')); "
        "print(json.dumps([['x', 'pass', ' '.join(fds)]]))"
    )
    monkeypatch.setattr("services.review.sandbox._BOOT", program)
    with (tmp_path / "open").open("w") as ours:
        os.set_inheritable(ours.fileno(), True)
        (found,) = run([b""])
    # Input, output, errors, and the listing itself.
    assert found.detail == "0 1 2 3"


def test_memory_that_a_reviewer_eats_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits are the process's own first deed: whatever it runs then is bound by them."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); "
        "from services.review.reviewers.__main__ import limit_this_process as limit; "
        "limit(memory_bytes=128 << 20, cpu_seconds=5); x = bytearray(1 << 30); "
        'print(\'[["x", "pass", ""]]\')'
    )
    monkeypatch.setattr("services.review.sandbox._BOOT", program)
    with pytest.raises(SandboxFailed, match="status 1"):
        run([b"content"])


_ORPHANS = """
import sys
from services.review import sandbox
from shared.core.clock import Deadline
sandbox._BOOT = (
    "import sys, time; sys.path.insert(0, sys.argv[1]); "
    "from services.review.reviewers.__main__ import limit_this_process as limit; "
    "limit(memory_bytes=256 << 20, cpu_seconds=5); sys.stderr.close(); time.sleep(600)"
)
print("started", flush=True)
sandbox.review_content({}, [b""], limits=sandbox.SandboxLimits(seconds=60),
    deadline=Deadline(60), check=lambda: None)
"""


def test_it_dies_with_a_worker_that_is_killed() -> None:
    root = Path(sandbox.__file__).resolve().parents[2]
    worker = subprocess.Popen([sys.executable, "-c", _ORPHANS], cwd=root, stdout=subprocess.PIPE)
    try:
        children = eventually(lambda: psutil.Process(worker.pid).children())
        (child,) = children
        # It sleeps once its limits are set; until then a closed pipe would end it as well.
        eventually(lambda: child.rlimit(psutil.RLIMIT_CORE) == (0, 0))
        eventually(lambda: child.status() == psutil.STATUS_SLEEPING)
        assert worker.stdout is not None
        worker.kill()
        eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()  # type: ignore[union-attr]
