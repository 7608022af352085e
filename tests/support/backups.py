"""A stand whose bucket is backed up to the channel `c`; and a process of it that dies."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from services.backup.deps import Deps
from services.backup.handlers import run as run_backup
from services.backup.items import back_up
from services.backup.pruning import prune
from services.restore.deps import Deps as RestoreDeps
from services.restore.handlers import restore_blob
from services.restore.runs import run_restore
from shared.catalog.backup_policy import BackupPolicy
from shared.catalog.backups.runs import enqueue_prune, manual_slot, open_run
from shared.catalog.models import (
    BackupContent,
    BackupItem,
    BackupRun,
    BlobRef,
    Bucket,
    HolderKind,
    Loss,
    Restore,
    RestoreItem,
)
from shared.catalog.restores.losses import FoundBy, report_loss
from shared.catalog.restores.runs import RestoreSpec, open_restore
from shared.core.clock import Deadline
from shared.core.failpoints import arm
from shared.outbox import Execution
from shared.outbox.settling import settle_kind
from shared.storage.faulty import FaultyChannel
from shared.storage.registry import OpenChannel, open_channel
from shared.storage.spec import ChannelSpec, Tuning
from tests.support.handlers import MIB, TENANT, Channels, Stand

TARGET = "c"


class RemoteChannels(Channels):
    """Channels of other kinds than directories, with the same switches."""

    def __init__(self, specs: Mapping[str, ChannelSpec]) -> None:
        self.faulty = {name: FaultyChannel(open_channel(spec)) for name, spec in specs.items()}
        tuning = Tuning(part_bytes=5 * MIB, breaker_failures=3, breaker_open_seconds=30.0)
        self._open = {name: OpenChannel.around(one, tuning) for name, one in self.faulty.items()}
        self.disabled: set[str] = set()
        self.gone: set[str] = set()


class BackupStand(Stand):
    """A worker of the backup and restore queues as well; `specs` put its channels elsewhere."""

    def __init__(
        self,
        url: str,
        root: Path,
        *,
        node: str = "node-1",
        grace_seconds: float = 0.0,
        specs: Mapping[str, ChannelSpec] | None = None,
    ) -> None:
        super().__init__(url, root, node=node, grace_seconds=grace_seconds)
        self.specs = specs
        if specs is not None:
            self.channels = RemoteChannels(specs)
            self.upload = replace(self.upload, channels=self.channels)
            self.delete = replace(self.delete, channels=self.channels)
        self.backup = Deps(
            db=self.db,
            catalogue=self.catalogue,
            channels=self.channels,
            page_versions=3,
            settle_seconds=0.0,
        )
        self.restore = RestoreDeps(
            db=self.db,
            catalogue=self.catalogue,
            channels=self.channels,
            staging=self.staging,
            page_entries=3,
        )

    def handler(self, kind: str) -> Callable[[Execution, Any], Any]:
        """Return the bound handler of a kind."""
        handlers: dict[str, Callable[[Execution, Any], Any]] = {
            "backup.run": lambda e, p: run_backup(e, p, self.backup),
            "backup.item": lambda e, p: back_up(e, p, self.backup),
            "backup.prune": lambda e, p: prune(e, p, self.backup),
            "restore.blob": lambda e, p: restore_blob(e, p, self.restore),
            "restore.run": lambda e, p: run_restore(e, p, self.restore),
            "restore.settle": settle_kind("restore", self.bench.context).handler,
            "backup.settle": settle_kind("backup", self.bench.context).handler,
        }
        return handlers[kind] if kind in handlers else super().handler(kind)

    # -- what is set up ------------------------------------------------------------------------

    def backed_up(
        self, name: str = "photos", *, channels: Sequence[str] = ("a", "b"), **rule: Any
    ) -> int:
        """Make a bucket with a rule for backups."""
        bucket_id = self.bucket(name, channels=channels)
        policy = BackupPolicy(target=TARGET, **{"grace_seconds": 0.0, **rule})

        def write(session: Session) -> None:
            session.get_one(Bucket, bucket_id).backup = policy.model_dump(mode="json")

        self.db.run_session(write)
        return bucket_id

    def stored(self, bucket_id: int, key: str, content: bytes) -> int:
        """Put an object and store it; returns the version's id."""
        answer = self.put(bucket_id, key, content)
        if answer.task_id is not None:
            assert self.work(answer.task_id) == "completed"
        return answer.version_id

    # -- runs ----------------------------------------------------------------------------------

    def begin(self, bucket_id: int, *, slot: str | None = None) -> BackupRun:
        """Open a run."""
        return self.db.run_session(
            lambda session: open_run(session, self.catalogue, bucket_id, slot=slot or manual_slot())
        )

    def carry_on(self, limit: int = 200) -> None:
        """Work on the backup queue until nothing is waiting, those that wait for a time as well."""
        for _ in range(limit):
            waiting = self.waiting("backup")
            if not waiting:
                return
            # Items first: a run only looks whether they have ended.
            self.work(waiting[-1])
        raise AssertionError(f"still waiting: {self.waiting('backup')}")

    def back_up(self, bucket_id: int, *, slot: str | None = None) -> BackupRun:
        """Make a run from its beginning to its end, pruning included."""
        begun = self.begin(bucket_id, slot=slot)
        self.carry_on()
        return self.run_row(begun.id)

    def prune_target(self, bucket_id: int) -> list[str]:
        """Prune a bucket's target now."""
        return [self.work(task_id) for task_id in self.enqueue_pruning(bucket_id)]

    def enqueue_pruning(self, bucket_id: int) -> list[int]:
        """Enqueue the pruning of a bucket's target; returns what waits in the queue then."""
        self.db.run_session(
            lambda session: enqueue_prune(
                session, self.catalogue, tenant_id=TENANT, bucket_id=bucket_id, target=TARGET
            )
        )
        return self.waiting("backup")

    # -- restores ------------------------------------------------------------------------------

    def lose(self, version_id: int, *, channel: str = "a") -> None:
        """Remove a stored version's bytes from a channel, as an accident would."""
        for location in self.locations(self.version(version_id).blob_id):
            if (location.channel, location.state) == (channel, "stored"):
                self.channels.faulty[channel].inner.delete(location.key, deadline=Deadline(10))

    def empty(self, channel: str) -> None:
        """Remove every key of a channel."""
        for key in self.channels.keys(channel):
            self.channels.faulty[channel].inner.delete(key, deadline=Deadline(10))

    def report(self, version_id: int, found_by: FoundBy = FoundBy.READ) -> int | None:
        """Report a version's location on the channel `a` as lost; returns its restore task."""
        (location,) = [
            one
            for one in self.locations(self.version(version_id).blob_id)
            if (one.channel, one.state) == ("a", "stored")
        ]

        def write(session: Session) -> int | None:
            loss_id = report_loss(
                session, self.catalogue, location_id=location.id, found_by=found_by
            )
            return None if loss_id is None else session.get_one(Loss, loss_id).task_id

        return self.db.run_session(write)

    def losses(self) -> list[Loss]:
        """Return all losses by id."""
        return self.look(lambda session: list(session.scalars(sa.select(Loss).order_by(Loss.id))))

    def bring_back(self, bucket_id: int, *, at: Any = None, **spec: Any) -> Restore:
        """Restore a bucket as the spec says, to the end; returns the restore's row."""

        def write(session: Session) -> Restore:
            bucket = session.get_one(Bucket, bucket_id)
            return open_restore(session, self.catalogue, bucket, RestoreSpec(**spec), at=at)

        begun = self.db.run_session(write)
        assert begun.task_id is not None
        self.work(begun.task_id)
        return self.restore_row(begun.id)

    def restore_row(self, restore_id: int) -> Restore:
        """Return a restore."""
        return self.look(lambda session: session.get_one(Restore, restore_id))

    def outcomes(self, restore_id: int) -> dict[str, str]:
        """Return what became of each key that a restore has met."""
        statement = sa.select(RestoreItem).where(RestoreItem.restore_id == restore_id)
        rows = self.look(lambda session: list(session.scalars(statement)))
        return {row.key: row.outcome for row in rows}

    # -- what is there -------------------------------------------------------------------------

    def run_row(self, run_id: int) -> BackupRun:
        """Return a run."""
        return self.look(lambda session: session.get_one(BackupRun, run_id))

    def items(self, run_id: int) -> list[BackupItem]:
        """Return a run's items by id."""
        statement = sa.select(BackupItem).where(BackupItem.run_id == run_id)
        return self.look(lambda session: list(session.scalars(statement.order_by(BackupItem.id))))

    def contents(self, state: str | None = None, kind: str = "content") -> list[BackupContent]:
        """Return what the target's rows say, by id."""
        statement = sa.select(BackupContent).where(BackupContent.kind == kind)
        if state is not None:
            statement = statement.where(BackupContent.state == state)
        return self.look(
            lambda session: list(session.scalars(statement.order_by(BackupContent.id)))
        )

    def pins(self) -> list[tuple[int, int]]:
        """Return (blob, run) of every pin."""
        statement = sa.select(BlobRef.blob_id, BlobRef.holder_id).where(
            BlobRef.holder_kind == HolderKind.BACKUP
        )
        return self.look(lambda session: [tuple(row) for row in session.execute(statement)])  # type: ignore[misc]

    def manifest(self, run: BackupRun) -> list[dict[str, Any]]:
        """Return the lines of a complete run's manifest."""
        assert run.manifest_id is not None
        manifest_id = run.manifest_id
        content = self.look(lambda session: session.get_one(BackupContent, manifest_id))
        text = self.channels.read(content.target, content.key)
        return [json.loads(line) for line in text.splitlines()]


def crash(stand: BackupStand, root: Path, task_id: int, failpoint: str) -> int | None:
    """Run a task in a process that dies at the point; returns its exit code, -9 when it did.

    Forked: to start an interpreter at each of many points would take minutes.
    """
    url = stand.db.engine.url.render_as_string(hide_password=False)
    process = multiprocessing.get_context("fork").Process(
        target=_die, args=(url, root, stand.specs, task_id, failpoint)
    )
    process.start()
    process.join(60)
    assert not process.is_alive(), "the process neither died nor ended"
    return process.exitcode


def _die(
    url: str,
    root: Path,
    specs: Mapping[str, ChannelSpec] | None,
    task_id: int,
    failpoint: str,
) -> None:
    """Run one task, with connections of its own, and end without letting go of the parent's."""
    stand = BackupStand(url, root, node="doomed", specs=specs)
    execution = stand.claim(task_id)
    arm(f"{failpoint}=kill")
    stand.run(execution)
    os._exit(0)
