"""Processes from a parent that has imported everything: a service is up in a tenth of the time.

The parent imports, opens nothing and starts no thread; each child is a fork of it with a session,
an environment and a log of its own. When the parent goes, by whatever way, its children go with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]
#: What children are made of.
MODULES = (
    *(
        f"services.{name}.__main__"
        for name in (
            *("api", "backup", "delete", "notify", "origin", "replica", "restore", "review"),
            *("scheduler", "upload", "cli"),
        )
    ),
    *("botocore.session", "boto3", "pymysql", "alembic.command", "services.cli.app"),
)
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class Child:
    """One process. `code` is None while it lives, then its exit code, -9 after SIGKILL."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.pid = 0
        self.code: int | None = None
        self._born = threading.Event()
        self._ended = threading.Event()

    def is_over(self) -> bool:
        """Tell whether it has ended."""
        return self._ended.is_set()

    def wait(self, seconds: float) -> int | None:
        """Wait for its end; returns the exit code, None when it still lives."""
        self._ended.wait(seconds)
        return self.code

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it still lives."""
        if not self._ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def stop(self, seconds: float = 20.0) -> None:
        """Let it end in its ordered way."""
        self.signal(signal.SIGTERM)
        if self.wait(seconds) is None:
            self.signal(signal.SIGKILL)
            self.wait(5.0)

    def tail(self, lines: int = 15) -> str:
        """Return the end of its log."""
        try:
            return "\n".join(self.log.read_text().splitlines()[-lines:])
        except OSError:
            return ""


class Nursery:
    """The parent, from the outside."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.nursery"],
            cwd=ROOT,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._lock = threading.Lock()
        self._children: list[Child] = []
        self._by_pid: dict[int, Child] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(
        self,
        module: str,
        *arguments: str,
        environment: Mapping[str, str],
        log: Path,
        out: Path | None = None,
    ) -> Child:
        """Run a module as `python -m` does; what it writes goes to `log`, or to `out` and `log`."""
        child = Child(log)
        with self._lock:
            order = {
                "number": len(self._children),
                "module": module,
                "arguments": arguments,
                "environment": dict(environment),
                "log": str(log),
                "out": str(out or log),
            }
            self._children.append(child)
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        assert child._born.wait(60.0), "the nursery does not answer"
        return child

    def close(self) -> None:
        """End the parent, and with it whatever still lives."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5.0)
        self._reader.join(5.0)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            news = json.loads(line)
            if "number" in news:
                child = self._children[news["number"]]
                child.pid = news["pid"]
                self._by_pid[child.pid] = child
                child._born.set()
            else:
                child = self._by_pid.pop(news["pid"])
                child.code = news["code"]
                child._ended.set()


@contextlib.contextmanager
def open_nursery(environment: Mapping[str, str]) -> Iterator[Nursery]:
    """Run a nursery for the length of the block."""
    nursery = Nursery(environment)
    try:
        yield nursery
    finally:
        nursery.close()


def main() -> None:
    """Import, then serve orders until standard input ends."""
    for name in MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    children: set[int] = set()
    buffered = b""
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(awake, selectors.EVENT_READ)
        is_open = True
        while is_open:
            for key, _ in selector.select():
                data = os.read(key.fd, 1 << 16)
                if key.fd == 0:
                    is_open = bool(data)
                    *lines, buffered = (buffered + data).split(b"\n")
                    for line in lines:
                        children.add(_bear(json.loads(line)))
            _reap(children)
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + 5.0
    while children and time.monotonic() < until:
        _reap(children)
        time.sleep(0.02)
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _bear(order: Mapping[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        _live(order)
    _tell({"number": order["number"], "pid": pid})
    return pid


def _reap(children: set[int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        children.discard(pid)
        _tell({"pid": pid, "code": os.waitstatus_to_exitcode(status)})


def _tell(news: Mapping[str, int]) -> None:
    os.write(1, json.dumps(news).encode() + b"\n")


def _live(order: Mapping[str, Any]) -> NoReturn:
    """Be the child: never returns."""
    code = 70
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        out, log = (os.open(order[name], flags, 0o600) for name in ("out", "log"))
        for source, target in ((nothing, 0), (out, 1), (log, 2)):
            os.dup2(source, target)
        os.closerange(3, 64)
        os.environ.clear()
        os.environ.update(order["environment"])
        code = _run(order["module"], order["arguments"])
    finally:
        os._exit(code)


def _run(module: str, arguments: Sequence[str]) -> int:
    sys.argv = [module, *arguments]
    # A second run of a module that is there already is what `python -m` would say as well.
    sys.modules.pop(module, None)
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    else:
        code = 0
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return code


if __name__ == "__main__":
    main()
