"""A tenant's buckets on real channels, a database and an outbox without threads: for handler tests.

`Stand.work` claims one task and runs its handler as a worker would, in this thread; two stands on
one database are two workers.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pydantic
import sqlalchemy as sa
from sqlalchemy.orm import Session

from services.delete import handlers as deleting
from services.delete import prefix as removing
from services.notify import handlers as notifying
from services.notify.turns import Turns
from services.replica import handlers as replicating
from services.replica import objects as copying
from services.review import handlers as reviewing
from services.review.again import review_again
from services.review.deps import Outside
from services.upload import assembling
from services.upload import handlers as uploading
from shared.catalog.accounts import ensure_tenant
from shared.catalog.buckets import BucketSpec, put_bucket
from shared.catalog.channel_slots import ChannelLimits, ChannelSlots
from shared.catalog.channels import ChannelInput, put_channel
from shared.catalog.deletes import delete_object
from shared.catalog.kinds import register_kinds
from shared.catalog.models import Blob, Location, ObjectRow, Review, Version
from shared.catalog.puts import PutAnswer, Staged, commit_put
from shared.catalog.review_policy import ReviewPolicy
from shared.catalog.secret_box import SecretBox
from shared.core.clock import Deadline
from shared.core.errors import StopError
from shared.fetch import Fetcher, FetchPolicy
from shared.outbox import Execution
from shared.outbox.cancel import supersede
from shared.outbox.housekeeping import drop_ended
from shared.outbox.kinds import Kind
from shared.outbox.manual import wake, wake_all
from shared.outbox.ports import Places
from shared.outbox.schema import tasks
from shared.outbox.settling import settle_kind
from shared.storage.faulty import FaultyChannel
from shared.storage.file import FileChannel
from shared.storage.registry import OpenChannel
from shared.storage.spec import Tuning
from shared.storage.staging import Staging
from tests.support.outbox import Bench

T = TypeVar("T")

TENANT = "acme"
#: The same in every process of a test.
SECRET_KEY = "c2VjcmV0LWtleS1vZi10aGUtdGVzdHMtMzItYnl0ZXM="
MIB = 1024 * 1024
#: Small parts, so that a small file has several.
PART_BYTES = 64 * 1024


class Channels:
    """Faulty file channels by name, each behind its breaker, with switches."""

    def __init__(self, root: Path, names: Sequence[str]) -> None:
        self.root = root
        self.faulty = {
            name: FaultyChannel(FileChannel(root / name, name=name, create=True)) for name in names
        }
        tuning = Tuning(part_bytes=PART_BYTES, breaker_failures=3, breaker_open_seconds=30.0)
        self._open = {name: OpenChannel.around(one, tuning) for name, one in self.faulty.items()}
        self.disabled: set[str] = set()
        self.gone: set[str] = set()

    def find(self, name: str) -> tuple[OpenChannel, bool] | None:
        """Return a channel and whether it takes new bytes."""
        if name in self.gone or name not in self._open:
            return None
        return self._open[name], name not in self.disabled

    def limit(self, name: str, max_running: int) -> None:
        """Let so many executions use a channel at a time; its breaker stays as it is."""
        self._open[name] = replace(self._open[name], max_running=max_running)

    def names(self) -> list[str]:
        """Return all names."""
        return sorted(set(self._open) - self.gone)

    def keys(self, name: str) -> list[str]:
        """Return what is really on a channel."""
        return [entry.key for entry in self.faulty[name].inner.list(deadline=Deadline(10))]

    def read(self, name: str, key: str) -> bytes:
        """Return the bytes of an object on a channel."""
        with self.faulty[name].inner.get(key, deadline=Deadline(10)) as chunks:
            return b"".join(chunks)


class Stand:
    """One worker process's view of one tenant."""

    def __init__(
        self,
        url: str,
        root: Path,
        *,
        node: str = "node-1",
        grace_seconds: float = 0.0,
        places: Places | None = None,
    ) -> None:
        self.channels = Channels(root / "channels", ["a", "b", "c"])
        self.bench = Bench(
            url,
            "redis://127.0.0.1:1",
            node=node,
            places=places,
            limits=ChannelLimits(self.channels),
        )
        self.slots = ChannelSlots(self.bench.resources)
        self.catalogue = register_kinds(self, grace_seconds=grace_seconds)
        self.staging = Staging(FileChannel(root / "staging", name="staging"))
        self.staging.prepare(deadline=Deadline(10))
        self.db = self.bench.context.db
        self.upload = uploading.Deps(
            db=self.db,
            catalogue=self.catalogue,
            channels=self.channels,
            staging=self.staging,
            slots=self.slots,
            tries_per_channel=3,
            join_part_bytes=PART_BYTES,
        )
        self.secrets = SecretBox(SECRET_KEY)
        fetcher = Fetcher(
            FetchPolicy(allow=["127.0.0.0/8:*"]), tls=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        )
        self.notify = notifying.Deps(
            db=self.db,
            catalogue=self.catalogue,
            secrets=self.secrets,
            fetcher=fetcher,
            turns=Turns(4),
        )
        self.review = reviewing.Deps(
            db=self.db,
            catalogue=self.catalogue,
            staging=self.staging,
            channels=self.channels,
            outside=Outside(fetch=fetcher, secrets=self.secrets, call_seconds=10.0),
        )
        self.delete = deleting.Deps(db=self.db, channels=self.channels, slots=self.slots)
        self.replica = replicating.Deps(
            db=self.db, catalogue=self.catalogue, channels=self.channels
        )
        self.prefix = removing.PrefixDeps(
            db=self.db, catalogue=self.catalogue, staging=self.staging, page_keys=3
        )

    # -- the outbox, as `register_kinds` wants it --------------------------------------------

    def register(self, kind: Kind[Any], /) -> None:
        """Make a kind known."""
        self.bench.context.kinds.register(kind)

    def enqueue(
        self, session: Session, kind: Any, payload: pydantic.BaseModel, **options: Any
    ) -> Any:
        """Write a task."""
        return self.bench.enqueuer.enqueue(session, kind, payload, **options)

    def supersede(self, session: Session, task_ids: Sequence[int]) -> None:
        """End older work."""
        supersede(self.bench.context, self.bench.enqueuer, session, task_ids)

    def wake(self, session: Session, task_id: int) -> bool:
        """Make a snoozing task due."""
        return wake(self.bench.context, session, task_id)

    def wake_all(self, session: Session, task_ids: Sequence[int]) -> int:
        """Make snoozing tasks due."""
        return wake_all(self.bench.context, session, task_ids)

    def forget(self, session: Session, task_ids: Sequence[int]) -> int:
        """Drop ended tasks."""
        return drop_ended(self.bench.context, session, task_ids)

    # -- what a client does --------------------------------------------------------------------

    def bucket(
        self,
        name: str = "photos",
        *,
        channels: Sequence[str] = ("a", "b"),
        replicas: Sequence[str] = (),
        **policy: Any,
    ) -> int:
        """Make or change a bucket on the channels; keywords are those of a review policy."""

        def write(session: Session) -> int:
            ensure_tenant(session, TENANT)
            for channel in self.channels.names():
                put_channel(
                    session,
                    ChannelInput(name=channel, kind="file", settings={"root": f"/{channel}"}),
                    secrets=SecretBox(SecretBox.generate_key()),
                )
            review = ReviewPolicy.model_validate(policy) if policy else None
            spec = BucketSpec(
                channels=list(channels), review_policy=review, replica_channels=list(replicas)
            )
            return put_bucket(session, TENANT, name, spec).bucket.id

        return self.db.run_session(write)

    def stage(self, content: bytes, content_type: str = "text/plain") -> Staged:
        """Put bytes into staging."""
        writer = self.staging.writer(declared_size=len(content))
        writer.write(content)
        done = writer.finish()
        return Staged(
            key=done.key,
            size=done.size,
            sha256=done.sha256,
            etag=done.md5,
            content_type=content_type,
        )

    def put(
        self, bucket_id: int, key: str, content: bytes, content_type: str = "text/plain"
    ) -> PutAnswer:
        """Put an object."""
        staged = self.stage(content, content_type)
        return self.db.run_session(
            lambda session: commit_put(session, self.catalogue, bucket_id, key, staged)
        )

    def remove(self, bucket_id: int, key: str) -> None:
        """Delete an object."""
        self.db.run_session(lambda session: delete_object(session, self.catalogue, bucket_id, key))

    # -- what a worker does --------------------------------------------------------------------

    def claim(self, task_id: int | None) -> Execution:
        """Take a task's lease."""
        assert task_id is not None
        return self.bench.run(task_id)

    def run(self, execution: Execution) -> str:
        """Run a claimed task's handler and write its answer; returns the task's state then."""
        kind = execution.kind
        assert kind is not None
        payload = kind.load(execution.task.payload)
        try:
            answer: Any = self.handler(kind.name)(execution, payload)
        except StopError as error:
            answer = error
        except Exception as error:
            answer = error
        if not execution.completed:
            if answer is None:
                with execution.complete():
                    pass
            else:
                self.bench.answers.settle(execution, answer)
        self.bench.context.executions.remove(execution)
        return self.state(execution.task.id)

    def work(self, task_id: int | None) -> str:
        """Claim a task and run it."""
        return self.run(self.claim(task_id))

    def handler(self, kind: str) -> Callable[[Execution, Any], Any]:
        """Return the bound handler of a kind."""
        handlers: dict[str, Callable[[Execution, Any], Any]] = {
            "upload.store": lambda e, p: uploading.store(e, p, self.upload),
            "upload.assemble": lambda e, p: assembling.assemble(e, p, self.upload),
            "review.check": lambda e, p: reviewing.check(e, p, self.review),
            "review.recheck": lambda e, p: reviewing.recheck(e, p, self.review),
            "review.again": lambda e, p: review_again(e, p, self.review),
            "notify.send": lambda e, p: notifying.send(e, p, self.notify),
            "delete.blob": lambda e, p: deleting.delete(e, p, self.delete),
            "delete.prefix": lambda e, p: removing.delete_prefix(e, p, self.prefix),
            "delete.settle": settle_kind("delete", self.bench.context).handler,
            "replica.copy": lambda e, p: replicating.copy(e, p, self.replica),
            "replica.repair": lambda e, p: replicating.copy(e, p, self.replica),
            "replica.object": lambda e, p: copying.copy_object(e, p, self.replica),
            "replica.settle": settle_kind("replica", self.bench.context).handler,
            "upload.settle": settle_kind("upload", self.bench.context).handler,
            "review.settle": settle_kind("review", self.bench.context).handler,
        }
        return handlers[kind]

    def work_all(self, queue: str) -> list[str]:
        """Run the waiting tasks of a queue, also those not due; returns the states they came to."""
        return [self.work(task_id) for task_id in self.waiting(queue)]

    # -- what is there -------------------------------------------------------------------------

    def waiting(self, queue: str) -> list[int]:
        """Return the ids of a queue's waiting tasks, ascending."""
        states = ("pending", "scheduled", "blocked", "dispatching", "dispatched")
        return self.look(
            lambda session: list(
                session.scalars(
                    sa.select(tasks.c.id)
                    .where(tasks.c.queue == queue, tasks.c.state.in_(states))
                    .order_by(tasks.c.id)
                )
            )
        )

    def look(self, read: Callable[[Session], T]) -> T:
        """Read in a fresh transaction."""
        return self.db.run_session(read, read_only=True)

    def state(self, task_id: int | None) -> str:
        """Return a task's state."""
        assert task_id is not None
        return str(self.bench.read(task_id).state)

    def task(self, task_id: int | None) -> Any:
        """Return all columns of a task."""
        assert task_id is not None
        return self.bench.columns(task_id)

    def version(self, version_id: int) -> Version:
        """Return a version."""
        return self.look(lambda session: session.get_one(Version, version_id))

    def blob(self, blob_id: int) -> Blob:
        """Return a blob."""
        return self.look(lambda session: session.get_one(Blob, blob_id))

    def review_of(self, version_id: int) -> Review:
        """Return the review of a version."""
        return self.look(
            lambda session: session.scalars(
                sa.select(Review).where(Review.version_id == version_id, Review.run_id == 0)
            ).one()
        )

    def locations(self, blob_id: int | None = None) -> list[Location]:
        """Return locations by id, of one blob or all."""
        statement = sa.select(Location).order_by(Location.id)
        if blob_id is not None:
            statement = statement.where(Location.blob_id == blob_id)
        return self.look(lambda session: list(session.scalars(statement)))

    def object(self, bucket_id: int, key: str) -> ObjectRow:
        """Return an object's row."""
        return self.look(
            lambda session: session.scalars(
                sa.select(ObjectRow).where(ObjectRow.bucket_id == bucket_id, ObjectRow.key == key)
            ).one()
        )

    def is_staged(self, key: str) -> bool:
        """Tell whether staging has a file, the trash included."""
        return self.staging.head(key, deadline=Deadline(10)) is not None

    def stored_bytes(self, version_id: int) -> bytes:
        """Return the bytes of a stored version from its channel, checked against its hash."""
        version = self.version(version_id)
        assert version.state == "stored"
        stored = [one for one in self.locations(version.blob_id) if one.state == "stored"]
        content = self.channels.read(stored[0].channel, stored[0].key)
        assert hashlib.sha256(content).hexdigest() == version.sha256
        return content

    def event_types(self, task_id: int | None) -> list[str]:
        """Return the types of a task's events."""
        assert task_id is not None
        return self.bench.event_types(task_id)

    def close(self) -> None:
        """Let go of everything."""
        self.bench.close()
