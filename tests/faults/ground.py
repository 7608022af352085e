"""The product on MariaDB, Redis and Ceph RGW with processes that die where a test says.

Channels and staging are buckets. Leases and scans are short, so that whoever died is missed at
once. Nobody else kills: a process that ends by SIGKILL did it itself, at its one armed failpoint.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import signal
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import httpx
import sqlalchemy as sa
from botocore.config import Config

from services.cli.bootstrap import prepare_catalogue
from services.cli.embedded import Layout, free_port, stack_variables
from services.cli.supervisor import python_environment
from shared.catalog.payloads import BACKUP_PRUNE
from shared.outbox.schema import tasks
from shared.runtime.settings import load_settings
from tests.faults.steps import Run
from tests.servers.mariadb import MariaDB
from tests.servers.redis import RedisServer
from tests.servers.rgw import CephRGW
from tests.support.eventually import eventually
from tests.support.gate import Gate, gate_to
from tests.support.nursery import Child, Nursery, open_nursery

#: Seconds that anything may take on a machine that does other work as well.
PATIENCE = 40.0
CHANNELS = ("main", "spare", "shaky", "slow", "vault")
ENDED = ("completed", "failed", "cancelled")
#: Behind another address, so that nothing is copied there by the server itself.
FAR = ("spare", "vault")
#: Slow enough for a lease to be renewed, with few places at a time.
SLOW = {"BANDWIDTH_BYTES_PER_SECOND": str(8 * 1024 * 1024), "MAX_RUNNING": "8"}
#: What the dead leave behind, which sweeps take away: it may be there for a while, and only that.
LEFTOVERS = {"I3", "I4", "I16", "I17"}

SETTINGS = {
    "BLOX_OUTBOX__LEASE_SECONDS": "1",
    "BLOX_OUTBOX__RENEW_SECONDS": "0.3",
    "BLOX_OUTBOX__SCAN_SECONDS": "0.15",
    "BLOX_OUTBOX__RECOVERY_MIN_SECONDS": "0.01",
    "BLOX_OUTBOX__RECOVERY_MAX_SECONDS": "0.05",
    "BLOX_OUTBOX__MAX_RECOVERIES": "1000",
    "BLOX_OUTBOX__DISPATCH_LEASE_SECONDS": "2",
    "BLOX_OUTBOX__DISPATCH_MARGIN_SECONDS": "0.5",
    "BLOX_OUTBOX__DISPATCHED_GRACE_SECONDS": "1",
    "BLOX_OUTBOX__GONE_AFTER_SECONDS": "0.3",
    "BLOX_OUTBOX__FULL_SCAN_SECONDS": "2",
    "BLOX_OUTBOX__NODE_SECONDS": "0.5",
    "BLOX_SCHEDULER__CLEANUP_SECONDS": "1",
    "BLOX_SCHEDULER__REPLICA_SECONDS": "1",
    "BLOX_SCHEDULER__BACKUP_SECONDS": "1",
    "BLOX_SCHEDULER__EXPIRY_SECONDS": "1",
    "BLOX_SWEEPS__MIN_AGE_SECONDS": "1",
    "BLOX_SWEEPS__TOMBSTONE_SECONDS": "1",
    "BLOX_STAGING__MAX_AGE_SECONDS": "2",
    "BLOX_STAGING__TRASH_SECONDS": "1",
    "BLOX_GRACE_SECONDS": "0",
    "BLOX_REPLICAS__AGAIN_SECONDS": "0.2",
    "BLOX_WORKER__THREADS": "2",
    "BLOX_API__MIN_PART_BYTES": "1",
    "BLOX_FETCH__ALLOW": '["127.0.0.0/8:*"]',
    "BLOX_SHUTDOWN_SECONDS": "10",
    "BLOX_LOG__FORMAT": "json",
}


class Ground:
    """One stack, whose processes a test starts, lets die and stops one by one."""

    def __init__(
        self,
        directory: Path,
        nursery: Nursery,
        gate: Gate,
        engine: sa.Engine,
        variables: dict[str, str],
        s3: Any,
        buckets: dict[str, str],
    ) -> None:
        self._directory, self._nursery = directory, nursery
        self._numbers = itertools.count(1)
        self._port = free_port()
        self._living: dict[str, list[Child]] = {}
        self.gate, self.engine, self.variables = gate, engine, variables
        self.s3, self.buckets = s3, buckets
        self.api_url = f"http://127.0.0.1:{self._port}"
        self.settings = load_settings(variables)
        self.admin_key = ""

    def prepare(self) -> None:
        """Make the schema, the channels and the first key."""
        done = self._run("shared.migrations.__main__")
        assert done.wait(PATIENCE) == 0, done.tail()
        self.admin_key = prepare_catalogue(
            self.settings, key_file=self._directory / "admin.key"
        ).key

    @property
    def workers(self) -> list[str]:
        """The services with a living process, beside API and scheduler."""
        return [name for name in self._living if name not in ("api", "scheduler")]

    # -- processes ---------------------------------------------------------------------------

    def start(self, service: str, *, die_at: str = "", **more: str) -> Child:
        """Start one process of a service, which may be one that dies at a failpoint."""
        more["BLOX_FAILPOINTS"] = f"{die_at}=kill" if die_at else ""
        if service == "api":
            more["BLOX_API__PORT"] = str(self._port)
        child = self._run(f"services.{service}.__main__", name=f"{service}-{die_at}", more=more)
        self._living.setdefault(service, []).append(child)
        if service == "api":
            eventually(lambda: child.is_over() or self._answers(), PATIENCE)
        return child

    def stop(self, *services: str) -> None:
        """Stop every process of these services (default: of all) in its ordered way."""
        for service in services or tuple(self._living):
            children = self._living.pop(service, [])
            for child in children:
                child.signal(signal.SIGTERM)
            for child in children:
                child.stop()

    def kill(self, service: str) -> None:
        """Kill every process of a service: it does nothing more from here on."""
        for child in self._living.pop(service, []):
            child.signal(signal.SIGKILL)
            child.wait(5.0)

    def need(self, *services: str) -> None:
        """See to it that one process of each of these services runs."""
        for service in services:
            if not any(not child.is_over() for child in self._living.get(service, [])):
                self.start(service)

    def dies(self, child: Child, step: str) -> None:
        """Wait until a process has killed itself at its failpoint."""
        began = time.monotonic()
        code = child.wait(PATIENCE)
        if code is None:
            child.signal(signal.SIGTERM)
        assert code == -signal.SIGKILL, f"{step}: nobody died there ({code}):\n{child.tail()}"
        print(f"{step}: died after {time.monotonic() - began:.2f} s")

    # -- what is to be killed ----------------------------------------------------------------

    def kill_in_task(
        self, queue: str, run: Run, cause: Callable[[], int], *, is_left: bool = False
    ) -> int:
        """Let one worker after the other die, each at the next step; then one does the rest.

        `cause` makes a task and returns its id: again whenever the last one has ended. Returns the
        id of the last task, which has completed, unless it `is_left` as it is and nobody works.
        """
        task_id = 0
        self.stop(queue)
        for step in run:
            if not task_id or self.state(task_id) in ENDED:
                task_id = cause()
            self.dies(self.start(queue, die_at=step), step)
        if not is_left:
            self.start(queue)
            self.completed(task_id)
        return task_id

    def kill_in_request(self, run: Run, request: Callable[[], object]) -> None:
        """Let one API after the other die of a request, each at the next step."""
        self.stop("api")
        for step in run:
            child = self.start("api", die_at=step)
            with contextlib.suppress(httpx.TransportError):
                request()
            self.dies(child, step)
        self.start("api")

    def kill_in_requests(self, run: Run, request: Callable[[], object]) -> None:
        """As `kill_in_request`, of one of many requests: only some meet the step."""

        def until_it_dies() -> None:
            child = self._living["api"][-1]
            eventually(lambda: request() and child.wait(0.2), PATIENCE, message="one request dies")

        self.kill_in_request(run, until_it_dies)

    def kill_scheduler(self, step: str) -> None:
        """Let a scheduler die at a step; nobody schedules afterwards."""
        self.kill("scheduler")
        self.dies(self.start("scheduler", die_at=step), step)

    def stop_sweeping(self) -> None:
        """Let somebody schedule who sweeps once, now, and not again."""
        self.kill("scheduler")
        self.start("scheduler", BLOX_SCHEDULER__CLEANUP_SECONDS="3600")

    # -- looks -------------------------------------------------------------------------------

    def state(self, task_id: int) -> str:
        """Return a task's state."""
        query = sa.select(tasks.c.state).where(tasks.c.id == task_id)
        with self.engine.connect() as connection:
            return str(connection.execute(query).scalar_one())

    def completed(self, task_id: int) -> None:
        """Wait until a task has completed."""
        eventually(lambda: self.state(task_id) in ENDED, PATIENCE, message=f"task {task_id} ends")
        assert self.state(task_id) == "completed"

    def last(self, kind: str) -> int:
        """Return the id of the newest task of a kind, 0 when there is none."""
        query = sa.select(sa.func.max(tasks.c.id)).where(tasks.c.kind == kind)
        with self.engine.connect() as connection:
            return int(connection.scalar(query) or 0)

    def made_by(self, act: Callable[[], object], kind: str) -> int:
        """Return the task of a kind that `act` makes."""
        before = self.last(kind)
        act()
        is_new = partial(self._newer, kind, before)
        return eventually(is_new, PATIENCE, message=f"a new task {kind}")

    def _newer(self, kind: str, before: int) -> int:
        found = self.last(kind)
        return found if found > before else 0

    def open_tasks(self) -> list[tuple[str, str, int]]:
        """Return kind, state and number of what has not ended, but for prunings in their grace."""
        is_graced = sa.and_(tasks.c.kind == BACKUP_PRUNE, tasks.c.state == "scheduled")
        query = (
            sa.select(tasks.c.kind, tasks.c.state, sa.func.count())
            .where(tasks.c.state.not_in(ENDED), sa.not_(is_graced))
            .group_by(tasks.c.kind, tasks.c.state)
        )
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(query)]  # type: ignore[misc]

    def become_quiet(self) -> None:
        """Wait until no task is open."""

        def is_quiet() -> bool:
            left = self.open_tasks()
            assert not left, left
            return True

        eventually(is_quiet, PATIENCE, interval_seconds=0.1)

    def clean(self) -> None:
        """Wait until all is quiet and find every invariant kept, each copy read back.

        Only what the dead left behind may still lie about for a while.
        """
        began = time.monotonic()
        self.become_quiet()
        print(f"quiet after {time.monotonic() - began:.2f} s")
        until = time.monotonic() + PATIENCE
        while found := self.check():
            assert {item["invariant"] for item in found} <= LEFTOVERS, found
            assert time.monotonic() < until, found
        print(f"clean after {time.monotonic() - began:.2f} s")

    def check(self) -> list[dict[str, str]]:
        """Return what `blox check --deep` finds now."""
        out = self._directory / f"check-{next(self._numbers)}.json"
        ages = ("--min-age-seconds", "0", "--settle-seconds", "0.2")
        child = self._run(
            "services.cli.__main__", "check", "--deep", "--output", "json", *ages, out=out
        )
        assert child.wait(PATIENCE) in (0, 1), child.tail()
        found: list[dict[str, str]] = json.loads(out.read_text())
        return found

    def lose(self, channel: str, *contents: bytes) -> None:
        """Let a channel lose these contents, whoever has them; all that it has without any."""
        bucket = self.buckets[channel]
        found = self.s3.list_objects_v2(Bucket=bucket).get("Contents", ())
        sizes = {len(content) for content in contents}
        for item in found:
            if contents and item["Size"] not in sizes:
                continue
            body = self.s3.get_object(Bucket=bucket, Key=item["Key"])["Body"].read()
            if not contents or body in contents:
                self.s3.delete_object(Bucket=bucket, Key=item["Key"])

    # -- within ------------------------------------------------------------------------------

    def _run(
        self,
        module: str,
        *arguments: str,
        name: str = "",
        more: dict[str, str] | None = None,
        out: Path | None = None,
    ) -> Child:
        label = re.sub(r"[^a-z0-9_.-]", "", name or module)
        log = self._directory / f"{next(self._numbers):03d}-{label}.log"
        environment = python_environment(
            {**self.variables, "BLOX_HEALTH__PORT": "0", **(more or {})}
        )
        return self._nursery.start(module, *arguments, environment=environment, log=log, out=out)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
            return True
        return False


@contextlib.contextmanager
def open_ground(
    directory: Path, mariadb: MariaDB, redis: RedisServer, rgw: CephRGW, **more: str
) -> Iterator[Ground]:
    """Give an empty stack of which nothing runs yet."""
    run = uuid.uuid4().hex[:12]
    names = (*CHANNELS, "staging")
    buckets = {name: f"{name}-{run}" for name in names}
    database = mariadb.create_database()
    layout = Layout(directory)
    layout.take()
    engine = sa.create_engine(mariadb.url(database))
    server = rgw.server
    access = {"ACCESS_KEY": server.access_key, "SECRET_KEY": server.secret_key}
    with gate_to(rgw.port) as gate, gate_to(rgw.port) as far:
        doors = {"shaky": gate.port, **dict.fromkeys(FAR, far.port)}
        given = {
            "BLOX_DATABASE_URL": mariadb.url(database),
            "BLOX_REDIS_URL": redis.url,
            "BLOX_NAMESPACE": f"t{run}",
            **SETTINGS,
            **more,
        }
        for name in CHANNELS:
            own = {
                "KIND": "s3",
                "ENDPOINT": f"http://127.0.0.1:{doors.get(name, rgw.port)}",
                "BUCKET": buckets[name],
                "PART_BYTES": str(5 * 1024 * 1024),
                "BREAKER_FAILURES": "1000",
                **access,
                **(SLOW if name == "slow" else {}),
            }
            given |= {f"BLOX_CHANNELS__{name.upper()}__{key}": one for key, one in own.items()}
        own = {"KIND": "s3", "ENDPOINT": server.endpoint, "BUCKET": buckets["staging"], **access}
        given |= {f"BLOX_STAGING__{key}": one for key, one in own.items()}
        variables = stack_variables(layout, given, redis_url=redis.url, is_for_people=False)
        variables |= {"BLOX_STOP_WITH_PARENT": "false"}
        s3 = boto3.client(
            "s3",
            endpoint_url=server.endpoint,
            aws_access_key_id=server.access_key,
            aws_secret_access_key=server.secret_key,
            region_name=server.region,
            config=Config(s3={"addressing_style": "path"}),
        )
        try:
            with open_nursery(python_environment({})) as nursery:
                ground = Ground(directory, nursery, gate, engine, variables, s3, buckets)
                try:
                    ground.prepare()
                    yield ground
                finally:
                    ground.stop()
        finally:
            engine.dispose()
            layout.release()
            _empty(s3, buckets)
            mariadb.drop_database(database)


def _empty(s3: Any, buckets: dict[str, str]) -> None:
    """Give the memory back: the store keeps its objects in it."""
    for bucket in buckets.values():
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket):
            for item in page.get("Contents", ()):
                s3.delete_object(Bucket=bucket, Key=item["Key"])
