"""One child process: started, waited for until it is ready, stopped by its pid.

Its output goes to a log file, whose end is shown when it fails.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

#: Where distributions keep daemons; a plain user's PATH often leaves it out.
_SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin"
_living: weakref.WeakSet[Process] = weakref.WeakSet()


class ServerError(RuntimeError):
    """A server is missing, died or did not become ready; the message holds the end of its log."""


def find_program(name: str) -> str | None:
    """Return the path of an installed program, also of a daemon, or None."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{_SYSTEM_PATH}")


def need_program(name: str) -> str:
    """Return the path of an installed program; ServerError says how to get a missing one."""
    found = find_program(name)
    if found is None:
        raise ServerError(f"{name} is not installed: run scripts/servers as root, or make test")
    return found


def run(argv: Sequence[str], *, log: Path, stdin: str = "", timeout_seconds: float = 60.0) -> str:
    """Run a set-up command to its end and return its standard output; ServerError if it fails."""
    with log.open("a") as errors:
        done = subprocess.run(
            argv,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
    if done.returncode != 0:
        raise ServerError(f"{argv[0]} ended with {done.returncode}\n{done.stdout}{tail(log)}")
    return done.stdout


def tail(log: Path, *, lines: int = 40) -> str:
    """Return the last lines of a log file, or a word that there is none."""
    if not log.exists():
        return f"(no log at {log})"
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


class Process:
    """A child that can be started again after it was stopped or killed, with the same arguments."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.name = name
        self.argv = list(argv)
        self.log = log
        self.env = dict(env) if env is not None else None
        self.cwd = cwd
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of the present child."""
        if self._child is None:
            raise ServerError(f"{self.name} was never started")
        return self._child.pid

    @property
    def returncode(self) -> int | None:
        """How the child ended; None while it runs or before it was started."""
        return self._child.poll() if self._child is not None else None

    def is_running(self) -> bool:
        """Tell whether the child lives (a stopped one counts as living)."""
        return self._child is not None and self._child.poll() is None

    def start(self) -> Self:
        """Start the child in a session of its own, which Ctrl-C in the terminal does not reach."""
        if self.is_running():
            raise ServerError(f"{self.name} runs already")
        with self.log.open("ab") as output:
            self._child = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.env,
                cwd=self.cwd,
                start_new_session=True,
            )
        _living.add(self)
        return self

    def wait_ready(self, check: Callable[[], object], *, timeout_seconds: float = 30.0) -> None:
        """Ask `check` until it is true; ServerError with the log when the child ends or time does.

        An exception from `check` counts as not yet.
        """
        until = time.monotonic() + timeout_seconds
        problem: Exception | None = None
        while True:
            if not self.is_running():
                raise ServerError(f"{self.name} ended with {self.returncode}\n{tail(self.log)}")
            try:
                if check():
                    return
            except Exception as error:
                problem = error
            if time.monotonic() > until:
                text = f"{self.name} not ready in {timeout_seconds} s ({problem!r})"
                raise ServerError(f"{text}\n{tail(self.log)}")
            time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the child alone."""
        if self.is_running():
            os.kill(self.pid, number)

    def pause(self) -> None:
        """Stop the child where it stands (SIGSTOP)."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused child go on."""
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the child at once (SIGKILL) and wait until it is gone."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def stop(self, *, timeout_seconds: float = 20.0) -> int | None:
        """Ask the child to end (SIGTERM), kill it when it does not, and return how it ended."""
        if self._child is None:
            return None
        if self.is_running():
            self.resume()
            self._child.terminate()
            try:
                self._child.wait(timeout_seconds)
            except subprocess.TimeoutExpired:
                self.kill()
        return self._child.returncode

    def __enter__(self) -> Self:
        return self if self.is_running() else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


@atexit.register
def _kill_the_rest() -> None:
    for process in list(_living):
        process.kill()
