"""A worker process whose tasks use a resource with a limit, which itself counts who is inside.

`python -m tests.support.slot_worker DATABASE_URL REDIS_URL NAMESPACE DIRECTORY [options]`.
The directory holds a file per execution inside (named by process and task), and a line per entry in
`entries`: the time, the task, its tenant, how many living ones were inside.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pydantic
import sqlalchemy as sa

from shared.coordination.slots import RedisSlots
from shared.core.failpoints import arm
from shared.outbox import Execution, Kind, RetryPolicy
from shared.outbox.outbox import Outbox
from tests.support.effects import settings_for
from tests.support.logs import plain_logs

ROOT = Path(__file__).resolve().parent.parent.parent
NAME = "channel:counted"


class Use(pydantic.BaseModel):
    """What is used, and for how long; `until` names a file that ends it earlier."""

    seconds: float = 0.0
    until: str = ""
    resource: str = NAME


USE = Kind(
    name="slots.use",
    payload=Use,
    retry=RetryPolicy(base_seconds=0.1, jitter="none"),
    max_recoveries=50,
    events=True,
)


class Limit:
    """One number for all resources, kept in a file so that a test can change it."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "limit"

    def limit(self, name: str) -> int:
        """Return it."""
        return int(self._path.read_text())


class Counter:
    """The resource: notes who comes and goes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._inside = directory / "inside"
        self._inside.mkdir(exist_ok=True)

    @contextlib.contextmanager
    def use(self, task_id: int, tenant_id: str, resource: str) -> Iterator[None]:
        """Be inside for the length of the block."""
        mine = self._inside / f"{os.getpid()}-{task_id}-{resource}"
        with open(self._directory / "entries", "a") as log:
            fcntl.flock(log, fcntl.LOCK_EX)
            mine.touch(exist_ok=False)
            others = [path.name.split("-", 2) for path in self.files()]
            inside = sum(name == resource and _is_alive(int(pid)) for pid, _, name in others)
            log.write(f"{time.time()} {task_id} {tenant_id} {inside}\n")
        try:
            yield
        finally:
            mine.unlink()

    def files(self) -> list[Path]:
        """Return a file for each that is inside, or died there."""
        return list(self._inside.iterdir())

    def entries(self) -> list[tuple[int, str, int]]:
        """Return (task, tenant, how many inside) of every entry, in order."""
        path = self._directory / "entries"
        lines = path.read_text().splitlines() if path.exists() else []
        parts = (line.split() for line in lines)
        return [(int(task), tenant, int(inside)) for _, task, tenant, inside in parts]

    def most(self) -> int:
        """Return how many were inside at most."""
        return max((inside for _, _, inside in self.entries()), default=0)


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def build(
    database_url: str, redis_url: str, namespace: str, directory: Path, *, lease_seconds: float
) -> Outbox:
    """Return an outbox whose slots live as long as its leases, and a third more."""
    outbox = Outbox(
        sa.create_engine(database_url, pool_size=20),
        redis_url,
        namespace=namespace,
        settings=settings_for(lease_seconds),
        places=RedisSlots(
            redis_url,
            namespace,
            slot_seconds=lease_seconds * 4 / 3,
            reserved_seconds=lease_seconds,
            rebuild_seconds=1.0,
            command_seconds=1.0,
        ),
        limits=Limit(directory),
    )
    counter = Counter(directory)

    @outbox.handler(USE)
    def use(execution: Execution, payload: Use) -> None:
        limit = Limit(directory).limit(payload.resource)
        with outbox.resources.hold(execution, payload.resource, limit=limit):
            with counter.use(execution.task.id, execution.task.tenant_id, payload.resource):
                end = time.monotonic() + payload.seconds
                while time.monotonic() < end and not (
                    payload.until and (directory / payload.until).exists()
                ):
                    execution.wait(min(0.02, payload.seconds))
            with execution.complete():
                pass

    return outbox


class SlotWorker:
    """A child process that runs `main`."""

    def __init__(
        self,
        database_url: str,
        redis_url: str,
        namespace: str,
        directory: Path,
        *,
        lease_seconds: float = 3.0,
        failpoints: str = "",
    ) -> None:
        command = [
            *(sys.executable, "-m", "tests.support.slot_worker"),
            *(database_url, redis_url, namespace, str(directory)),
            f"--lease={lease_seconds}",
            f"--failpoints={failpoints}",
        ]
        self.process = subprocess.Popen(command, cwd=ROOT)

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.process.kill()
        self.process.wait(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.kill()


def main() -> None:
    """Run the worker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("database_url")
    parser.add_argument("redis_url")
    parser.add_argument("namespace")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--lease", type=float, default=3.0)
    parser.add_argument("--failpoints", default="")
    args = parser.parse_args()
    outbox = build(
        args.database_url,
        args.redis_url,
        args.namespace,
        args.directory,
        lease_seconds=args.lease,
    )
    arm(args.failpoints)
    outbox.run(threads=4, shutdown_seconds=5.0)


if __name__ == "__main__":
    plain_logs()
    main()
