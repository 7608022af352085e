"""A worker process whose handlers leave one row per committed effect, to count them from outside.

`python -m tests.support.effects DATABASE_URL REDIS_URL NAMESPACE [options]` runs until TERM.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import pydantic
import sqlalchemy as sa

from shared.core.failpoints import arm
from shared.outbox import Execution, Kind, OutboxSettings, RetryPolicy
from shared.outbox.outbox import Outbox
from tests.support.logs import plain_logs

ROOT = Path(__file__).resolve().parent.parent.parent

effects_metadata = sa.MetaData()
#: One row per committed effect; a second one for a task is the fault that tests look for.
effects = sa.Table(
    "test_effects",
    effects_metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("task_id", sa.BigInteger, nullable=False),
    sa.Column("fence", sa.BigInteger, nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    mysql_engine="InnoDB",
)
#: One row per handler start, committed at once.
starts = sa.Table(
    "test_starts",
    effects_metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("task_id", sa.BigInteger, nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    mysql_engine="InnoDB",
)


class Work(pydantic.BaseModel):
    """How long the handler takes, whether it asks meanwhile, and how it dies, if it does."""

    seconds: float = 0.0
    heedless: bool = False
    deadly: bool = False


#: Commits its effect itself, through `complete()`.
EFFECT = Kind(
    name="effects.add",
    payload=Work,
    retry=RetryPolicy(base_seconds=0.05, cap_seconds=0.2, jitter="none"),
    max_recoveries=50,
)
#: Returns nothing: the finisher completes it.
PLAIN = Kind(name="effects.plain", payload=Work, max_recoveries=50)
#: Fails after few lost leases: for tasks that kill their workers.
DEADLY = Kind(name="effects.deadly", payload=Work, max_recoveries=2)


class AllCredits:
    """A producer that always may dispatch by itself, whoever consumes."""

    def take(self, queue_name: str, tenant_id: str) -> bool:
        """Give one."""
        return True

    def mark_backlog(self, queue_name: str, tenant_id: str) -> None:
        """Do not care."""

    def refresh(self) -> None:
        """Do not ask."""


def settings_for(lease_seconds: float) -> OutboxSettings:
    """Return short times around a lease."""
    return OutboxSettings(
        lease_seconds=lease_seconds,
        renew_seconds=lease_seconds / 3,
        dispatch_lease_seconds=8.0,
        dispatched_grace_seconds=1.0,
        scan_seconds=0.5,
        gone_after_seconds=0.5,
        recovery_min_seconds=0.1,
        recovery_max_seconds=0.5,
        full_scan_seconds=5.0,
        interrupt_after_seconds=1.0,
        unstarted_seconds=1.0,
    )


def build(
    database_url: str, redis_url: str, namespace: str, *, lease_seconds: float = 3.0
) -> Outbox:
    """Return an outbox that knows all kinds."""
    outbox = Outbox(
        sa.create_engine(database_url, pool_size=20),
        redis_url,
        namespace=namespace,
        settings=settings_for(lease_seconds),
    )
    outbox.register(EFFECT, PLAIN, DEADLY)
    return outbox


def attach(outbox: Outbox) -> None:
    """Attach the handlers."""
    engine = outbox.engine

    def begin(execution: Execution, payload: Work) -> None:
        with engine.begin() as connection:
            values = {"task_id": execution.task.id, "pid": os.getpid()}
            connection.execute(sa.insert(starts).values(**values))
        if payload.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        if payload.seconds and payload.heedless:
            time.sleep(payload.seconds)
        elif payload.seconds:
            execution.wait(payload.seconds)

    @outbox.handler(EFFECT)
    def effect(execution: Execution, payload: Work) -> None:
        begin(execution, payload)
        with execution.complete() as tx:
            tx.session.execute(
                sa.insert(effects).values(
                    task_id=execution.task.id, fence=execution.fence, pid=os.getpid()
                )
            )

    @outbox.handler(DEADLY)
    def deadly(execution: Execution, payload: Work) -> None:
        begin(execution, payload)

    @outbox.handler(PLAIN)
    def plain(execution: Execution, payload: Work) -> None:
        begin(execution, payload)


class EffectWorker:
    """A child process that runs `main`."""

    def __init__(
        self,
        database_url: str,
        redis_url: str,
        namespace: str,
        *,
        lease_seconds: float = 3.0,
        threads: int = 4,
        failpoints: str = "",
        compensate: bool = False,
    ) -> None:
        command = [
            *(sys.executable, "-m", "tests.support.effects", database_url, redis_url, namespace),
            f"--lease={lease_seconds}",
            f"--threads={threads}",
            f"--failpoints={failpoints}",
        ]
        if compensate:
            command.append("--compensate")
        self.process = subprocess.Popen(command, cwd=ROOT)

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self.process.pid

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.process.kill()
        self.process.wait(10)

    def pause(self) -> None:
        """Stop it where it stands."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """End it in the ordered way; returns its exit code."""
        self.process.terminate()
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(10)


def main() -> None:
    """Run the worker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("database_url")
    parser.add_argument("redis_url")
    parser.add_argument("namespace")
    parser.add_argument("--lease", type=float, default=3.0)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--failpoints", default="")
    parser.add_argument("--compensate", action="store_true")
    args = parser.parse_args()
    outbox = build(args.database_url, args.redis_url, args.namespace, lease_seconds=args.lease)
    attach(outbox)
    arm(args.failpoints)
    outbox.run(threads=args.threads, compensate=args.compensate, shutdown_seconds=10.0)


if __name__ == "__main__":
    plain_logs()
    main()
