"""Child processes that are looked after: started, listened to, restarted with back-off, stopped.

Each child has a session of its own, so that a signal to the terminal's group reaches the parent
only, and a standard input that ends when the parent dies, however it dies.
"""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from services.cli.output import Output, ending
from shared.core.clock import Deadline, monotonic

#: Seconds before a child that died is started again: doubled from the first to the second ...
FIRST_BACKOFF_SECONDS = 0.2
LAST_BACKOFF_SECONDS = 15.0
#: ... and forgotten when it has lived this long.
STEADY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """What to start. Children of a lower `stop_order` are stopped first."""

    name: str
    argv: Sequence[str]
    environment: Mapping[str, str]
    stop_order: int = 0


class ManagedProcess:
    """One child and its history. `look` is to be called by one thread, again and again."""

    def __init__(self, spec: ProcessSpec, output: Output) -> None:
        self.spec = spec
        self.restarts = 0
        self._output = output
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.RLock()
        self._is_wanted = False
        self._backoff_seconds = FIRST_BACKOFF_SECONDS
        self._started_at = 0.0
        self._start_again_at: float | None = None

    @property
    def name(self) -> str:
        """The name in the process table and in the log."""
        return self.spec.name

    @property
    def pid(self) -> int | None:
        """The process id of the living child, None while there is none."""
        with self._lock:
            if self._child is None or self._child.poll() is not None:
                return None
            return self._child.pid

    def start(self) -> None:
        """Start the child now and keep it running from here on."""
        with self._lock:
            self._is_wanted = True
            if self.pid is None:
                self._spawn()

    def set_environment(self, environment: Mapping[str, str]) -> None:
        """Use another environment from the next start on."""
        with self._lock:
            self.spec = replace(self.spec, environment=environment)

    def look(self) -> None:
        """Notice a child that died, and start it again when its back-off is over."""
        with self._lock:
            if not self._is_wanted or self._child is None or self._child.poll() is None:
                return
            now = monotonic()
            if self._start_again_at is None:
                if now - self._started_at >= STEADY_SECONDS:
                    self._backoff_seconds = FIRST_BACKOFF_SECONDS
                self._start_again_at = now + self._backoff_seconds
                self._output.note(
                    self.name,
                    f"{ending(self._child.returncode)}; starting it again in "
                    f"{self._backoff_seconds:.1f} s",
                )
                self._backoff_seconds = min(LAST_BACKOFF_SECONDS, self._backoff_seconds * 2)
            elif now >= self._start_again_at:
                self.restarts += 1
                self._spawn()

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to the child alone; False when none is alive."""
        with self._lock:
            if self.pid is None or self._child is None:
                return False
            self._child.send_signal(number)
            return True

    def ask_to_stop(self) -> None:
        """Ask the child to end, and do not start it again. A paused child is woken for it."""
        with self._lock:
            self._is_wanted = False
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)

    def wait(self, seconds: float) -> bool:
        """Wait until the child is gone; False when it is still there after `seconds`."""
        child = self._child
        if child is None:
            return True
        try:
            child.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """Let go of a child that is gone."""
        with self._lock:
            if self._child is not None and self._child.stdin is not None:
                self._child.stdin.close()

    def _spawn(self) -> None:
        self.close()
        sink = self._output.open(self.name)
        try:
            self._child = subprocess.Popen(
                list(self.spec.argv),
                stdin=subprocess.PIPE,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=dict(self.spec.environment),
                start_new_session=True,
            )
        finally:
            if not isinstance(sink, int):
                sink.close()
        self._started_at = monotonic()
        self._start_again_at = None
        self._output.follow(self.name, self._child.stdout)


class ProcessTable:
    """The children of one stack, and the thread that keeps them running."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._processes: dict[str, ManagedProcess] = {}
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, spec: ProcessSpec) -> ManagedProcess:
        """Start a child and look after it."""
        process = ManagedProcess(spec, self._output)
        process.start()
        self._processes[spec.name] = process
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
            self._thread.start()
        return process

    def __getitem__(self, name: str) -> ManagedProcess:
        return self._processes[name]

    def __iter__(self) -> Iterator[ManagedProcess]:
        return iter(list(self._processes.values()))

    def pids(self) -> dict[str, int]:
        """Return the process ids of the living children by name."""
        return {p.name: pid for p in self if (pid := p.pid) is not None}

    def stop_all(self, seconds: float) -> list[str]:
        """Stop the children group by group; returns the names of those that had to be killed.

        `seconds` bounds one group.
        """
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        killed = []
        for order in sorted({process.spec.stop_order for process in self}):
            group = [process for process in self if process.spec.stop_order == order]
            killed += self._stop_group(group, seconds)
        self._output.close()
        return killed

    def _stop_group(self, group: list[ManagedProcess], seconds: float) -> list[str]:
        deadline = Deadline(seconds)
        for process in group:
            process.ask_to_stop()
        killed = []
        for process in group:
            if not process.wait(deadline.remaining()):
                process.signal(signal.SIGKILL)
                process.wait(5.0)
                killed.append(process.name)
                self._output.note(process.name, f"not gone after {seconds:g} s: killed")
            process.close()
        return killed

    def _run(self) -> None:
        while not self._closing.wait(0.05):
            for process in self:
                try:
                    process.look()
                except OSError as error:
                    self._output.note(process.name, f"cannot be started: {error}")
