"""The embedded stack: every service its own process on this machine, from one call or one command.

`EmbeddedStack` is what `blox up`, the demo and the tests start. It reads no settings by itself:
whoever makes it gives the variables.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from services.cli.bootstrap import AdminAccess, prepare_catalogue
from services.cli.embedded import (
    Layout,
    free_port,
    need_redis,
    prepare_redis,
    stack_variables,
)
from services.cli.liveness import LivenessWatch
from services.cli.output import FileOutput, Output
from services.cli.processes import ManagedProcess, ProcessSpec, ProcessTable
from services.cli.readiness import not_ready_reason
from shared.core.clock import Deadline
from shared.core.errors import BloxError, NotFoundError, UnavailableError
from shared.runtime.problems import problems
from shared.runtime.settings import Settings, child_environment, load_settings

#: Processes of each service in an ordinary stack.
DEFAULT_WORKERS: Mapping[str, int] = {
    "upload": 2,
    "review": 1,
    "delete": 1,
    "replica": 1,
    "origin": 1,
    "backup": 1,
    "restore": 1,
    "notify": 1,
}
#: The order of a stop: what takes new work first, what others need last.
_API, _WORKERS, _REDIS = 0, 1, 2
#: Seconds that a process gets beyond its own shutdown before it is killed.
_STOP_MARGIN_SECONDS = 3.0
#: Lines of a log that an error shows.
_SHOWN_LINES = 20
_ROOT = Path(__file__).resolve().parents[2]


class StackError(BloxError):
    """The stack could not be started."""

    code = "stack"


class EmbeddedStack:
    """All processes of one stack, on loopback ports.

    `variables` are `BLOX_*` for all processes; with `BLOX_DATABASE_URL` or `BLOX_REDIS_URL` among
    them no private server is made. `per_process` adds variables for single ones by their name. With
    one process a service's name is the process's, with more it is `upload-1`, `upload-2`. A start
    is given up when `is_aborted` says so.
    """

    def __init__(
        self,
        directory: Path,
        *,
        variables: Mapping[str, str] | None = None,
        per_process: Mapping[str, Mapping[str, str]] | None = None,
        workers: Mapping[str, int] = DEFAULT_WORKERS,
        output: Output | None = None,
        is_for_people: bool = False,
        restarts_hung: bool = True,
        is_aborted: Callable[[], bool] = lambda: False,
    ) -> None:
        self.layout = Layout(directory)
        self._given = dict(variables or {})
        self._per_process = {name: dict(extra) for name, extra in (per_process or {}).items()}
        self._workers = dict(workers)
        self._output = output
        self._is_for_people = is_for_people
        self._restarts_hung = restarts_hung
        self._is_aborted = is_aborted
        self._table: ProcessTable | None = None
        self._watch: LivenessWatch | None = None
        self._ports: dict[str, int] = {}
        self._api_port = 0
        self.variables: dict[str, str] = {}
        self.settings = Settings()
        self.admin = AdminAccess("", "")

    # -- addresses and names ---------------------------------------------------------------

    @property
    def api_url(self) -> str:
        """The address of the HTTP API, without a slash at its end."""
        return f"http://127.0.0.1:{self._api_port}"

    @property
    def admin_key(self) -> str:
        """A key with all scopes for the tenant `admin_tenant`."""
        return self.admin.key

    @property
    def admin_tenant(self) -> str:
        """The tenant that the admin key belongs to."""
        return self.admin.tenant_id

    @property
    def names(self) -> list[str]:
        """The names of all processes, in the order of their start."""
        return [process.name for process in self._processes]

    def health_url(self, name: str) -> str:
        """Return the address of a process's /livez, /readyz and /metrics."""
        return f"http://127.0.0.1:{self._ports[name]}"

    def log_path(self, name: str) -> Path:
        """Return the log file of a process, when logs go to files."""
        return self.layout.logs / f"{name}.log"

    # -- the processes ---------------------------------------------------------------------

    def pids(self) -> dict[str, int]:
        """Return the process ids of the living processes by name."""
        return self._processes.pids()

    def restarts(self) -> dict[str, int]:
        """Return how often each process was started again."""
        return {process.name: process.restarts for process in self._processes}

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal to one process, SIGKILL by default; returns its process id.

        A killed process is started again with back-off.
        """
        process = self._process(name)
        pid = process.pid
        if pid is None or not process.signal(number):
            raise NotFoundError(f"{name} is not running", process=name)
        return pid

    def pause(self, name: str) -> int:
        """Stop one process where it stands (SIGSTOP)."""
        return self.kill(name, signal.SIGSTOP)

    def resume(self, name: str) -> int:
        """Let a paused process go on (SIGCONT)."""
        return self.kill(name, signal.SIGCONT)

    def stop_process(self, name: str, *, seconds: float = 20.0) -> None:
        """Stop one process in its ordered way, and leave it stopped."""
        process = self._process(name)
        process.ask_to_stop()
        if not process.wait(seconds):
            process.signal(signal.SIGKILL)
            process.wait(5.0)

    def set_variables(self, name: str, variables: Mapping[str, str]) -> None:
        """Give one process other variables, beside the common ones, from its next start on."""
        process = self._process(name)
        self._per_process[name] = dict(variables)
        process.set_environment(self._environment(name))

    def start_process(self, name: str) -> None:
        """Start a process that was stopped."""
        self._process(name).start()

    # -- the whole -------------------------------------------------------------------------

    def start(self, *, timeout_seconds: float = 60.0) -> None:
        """Make what is missing, start every process and wait until all are ready.

        Raises ConflictError when a stack runs in this directory already, StackError when a process
        does not become ready; what was started is stopped then.
        """
        self.layout.take()
        try:
            self._start(Deadline(timeout_seconds))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> list[str]:
        """Stop everything: API, workers and scheduler, Redis. Returns what had to be killed."""
        killed: list[str] = []
        if self._watch is not None:
            self._watch.close()
        if self._table is not None:
            killed = self._table.stop_all(self.settings.shutdown_seconds + _STOP_MARGIN_SECONDS)
        self.layout.release()
        return killed

    def wait_ready(self, timeout_seconds: float, *names: str) -> None:
        """Wait until these processes (default: all) say that they are ready."""
        deadline = Deadline(timeout_seconds)
        for name in names or tuple(self._ports):
            while (missing := not_ready_reason(self.health_url(name))) is not None:
                if self._is_aborted():
                    raise StackError("asked to stop before everything was ready")
                if deadline.expired():
                    waited = f"{name} is not ready after {timeout_seconds:.0f} s: {missing}"
                    raise StackError("\n".join([waited, *self._last_lines(name)]))
                threading.Event().wait(0.05)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self, deadline: Deadline) -> None:
        output = self._output or FileOutput(self.layout.logs)
        self._table = table = ProcessTable(output)
        redis_url, redis_argv = self._given.get("BLOX_REDIS_URL"), None
        if redis_url is None:
            redis_argv, redis_url = prepare_redis(self.layout)
        self.variables = stack_variables(
            self.layout, self._given, redis_url=redis_url, is_for_people=self._is_for_people
        )
        self.settings = load_settings(self.variables)
        # All that can be refused is refused before anything runs.
        problems(self.settings).refuse()
        self._api_port = self._choose_api_port()
        if redis_argv is not None:
            table.start(ProcessSpec("redis", redis_argv, child_environment({}), _REDIS))
        else:
            need_redis(redis_url)
        self._migrate(deadline.remaining(120.0))
        self.admin = prepare_catalogue(self.settings, key_file=self.layout.admin_key)
        for name, service in self._services():
            order = _API if service == "api" else _WORKERS
            table.start(self._spec(name, service, order))
        self.wait_ready(max(1.0, deadline.remaining(600.0)))
        if self._restarts_hung:
            self._watch = LivenessWatch(table, self.health_url, list(self._ports), output)
            self._watch.start()

    def _choose_api_port(self) -> int:
        wanted = self.settings.api.port
        if "BLOX_API__PORT" in self._given and wanted:
            if free_port(wanted) != wanted:
                raise StackError(f"port {wanted} of BLOX_API__PORT is taken")
            return wanted
        # People like a port that they know; stacks that run side by side must not want the same.
        return free_port(wanted if self._is_for_people else 0)

    def _services(self) -> list[tuple[str, str]]:
        found = [("api", "api"), ("scheduler", "scheduler")]
        for service, count in self._workers.items():
            if service in self.settings.services.switched_off:
                continue
            if count == 1:
                found.append((service, service))
            else:
                found += [(f"{service}-{number}", service) for number in range(1, count + 1)]
        return found

    def _spec(self, name: str, service: str, order: int) -> ProcessSpec:
        self._ports[name] = free_port()
        return ProcessSpec(
            name=name,
            argv=[sys.executable, "-m", f"services.{service}"],
            environment=self._environment(name),
            stop_order=order,
        )

    def _environment(self, name: str) -> dict[str, str]:
        return python_environment(
            {
                **self.variables,
                "BLOX_API__PORT": str(self._api_port),
                "BLOX_HEALTH__HOST": "127.0.0.1",
                "BLOX_HEALTH__PORT": str(self._ports[name]),
                **self._per_process.get(name, {}),
            }
        )

    def _migrate(self, seconds: float) -> None:
        """Bring the schema up in a process of its own, as a deployment does."""
        done = subprocess.run(
            [sys.executable, "-m", "shared.migrations"],
            env=python_environment(self.variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=max(1.0, seconds),
            start_new_session=True,
        )
        if done.returncode != 0:
            raise StackError(f"{done.stdout}{done.stderr}".strip())

    def _last_lines(self, name: str) -> list[str]:
        """Return the end of a process's log file, nothing where logs go to the terminal."""
        try:
            return self.log_path(name).read_text().splitlines()[-_SHOWN_LINES:]
        except OSError:
            return []

    @property
    def _processes(self) -> ProcessTable:
        if self._table is None:
            raise UnavailableError("the stack was not started")
        return self._table

    def _process(self, name: str) -> ManagedProcess:
        try:
            return self._processes[name]
        except KeyError:
            raise NotFoundError(f"no process is named {name}", known=self.names) from None


def python_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which `python -m services.…` finds this very code."""
    environment = child_environment(variables)
    paths = [str(_ROOT), *filter(None, [environment.get("PYTHONPATH")])]
    return {**environment, "PYTHONPATH": ":".join(paths), "PYTHONUNBUFFERED": "1"}
