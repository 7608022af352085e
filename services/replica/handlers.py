"""Brings one content to one more channel: any verified copy → a fresh key → the one commit.

`replica.copy` makes a copy that a rule asks for, `replica.repair` one in the place of a lost one;
both are the same work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from shared.catalog import fenced
from shared.catalog.channel_slots import ChannelSlots, resource_of
from shared.catalog.context import Catalogue
from shared.catalog.copying import Copied, CopyDeps, Damage, copy_blob, patient_seconds
from shared.catalog.erasing import ChannelBook
from shared.catalog.payloads import CopyReplica
from shared.catalog.replicas.copies import ReplicaCommit, ReplicaJob, read_replica
from shared.catalog.replicas.losses import report_loss
from shared.catalog.restores.losses import FoundBy
from shared.core.errors import ResourceBusy
from shared.core.failpoints import failpoint
from shared.core.outcomes import Snooze
from shared.outbox import Execution
from shared.outbox.completion import Completion
from shared.outbox.db import Database
from shared.storage.registry import OpenChannel


@dataclass(frozen=True, slots=True, kw_only=True)
class Deps:
    """What the handler works with."""

    db: Database
    catalogue: Catalogue
    channels: ChannelBook
    slots: ChannelSlots = field(default_factory=ChannelSlots)

    @contextmanager
    def use(self, execution: Execution, found: tuple[OpenChannel, bool] | None) -> Iterator[None]:
        """Use a target in the block, the commit included; ResourceBusy when it takes no more."""
        if found is None:
            yield
            return
        opened = found[0]
        if not opened.ready():
            # A success wakes those that wait, so that they may wait for long.
            seconds = patient_seconds(execution, opened.retry_after_seconds())
            raise ResourceBusy(
                f"channel {opened.name} is left alone for a while",
                resource=resource_of(opened.name),
                after_seconds=self.slots.broken(opened.name, seconds),
            )
        with self.slots.hold(execution, opened):
            yield


def copy(execution: Execution, payload: CopyReplica, deps: Deps) -> Snooze | None:
    """Make one replica's copy and complete the task in the commit that makes it count.

    Ends superseded when the blob is not live or nobody asks for the copy any more, waits uncounted
    while the target is full or left alone, fails when every source is missing or damaged; those are
    reported as lost.
    """
    failpoint("replica.claimed")
    task_id = execution.task.id
    job = deps.db.run_session(
        lambda session: read_replica(session, payload.replica_id, task_id=task_id), read_only=True
    )
    if job is None:
        return None
    if job.place is not None:
        _commit(execution, deps, job, None)
        return None
    found = deps.channels.find(job.copy.target)
    with deps.use(execution, found):
        answer = copy_blob(execution, copying(deps), job.copy)
        if isinstance(answer, Snooze):
            return answer
        _commit(execution, deps, job, answer)
    failpoint("replica.after_commit")
    return None


def copying(deps: Deps, *, points: str = "replica") -> CopyDeps:
    """Return what copying needs; a damaged source is reported as lost."""

    def on_damage(damage: Damage) -> None:
        location_id = damage.source.location_id
        if location_id is None:
            return
        deps.db.run_session(
            lambda session: report_loss(
                session, deps.catalogue, location_id, found_by=FoundBy.REPLICA, detail=damage.code
            )
        )

    return CopyDeps(
        db=deps.db,
        channels=deps.channels,
        points=points,
        on_damage=on_damage,
        slots=deps.slots,
    )


def _commit(execution: Execution, deps: Deps, job: ReplicaJob, copied: Copied | None) -> None:
    commit = ReplicaCommit(job, copied, task_id=execution.task.id)

    def write(tx: Completion) -> None:
        location_id = commit.apply(tx.session)
        tx.result = {
            "channel": job.copy.target,
            "location_id": location_id,
            "bytes_sent": 0 if copied is None else copied.bytes_sent,
            "method": "none" if copied is None else copied.method,
            "source": None if copied is None else copied.source.channel,
        }

    failpoint("replica.before_commit")
    fenced.complete(execution, deps.db, lock=commit.lock, body=write)
