"""A catalogue without channels and workers: the commits of both sides, and threads that meet.

`World.store` is the upload worker's last transaction, as the protocols describe it.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.accounts import ensure_tenant
from shared.catalog.buckets import BucketSpec, put_bucket
from shared.catalog.channels import ChannelInput, put_channel
from shared.catalog.deletes import DeleteAnswer, delete_object
from shared.catalog.kinds import register_kinds
from shared.catalog.locking import lock_version
from shared.catalog.models import (
    Base,
    Blob,
    BlobRef,
    BlobState,
    Location,
    LocationState,
    ObjectRow,
    Version,
    VersionState,
    utc_now,
)
from shared.catalog.puts import PutAnswer, Staged, commit_put
from shared.catalog.reads import Readable, open_version
from shared.catalog.review_policy import ReviewPolicy
from shared.catalog.secret_box import SecretBox
from shared.catalog.versions import make_current, may_store
from shared.core.ids import new_id
from shared.outbox.outbox import Outbox
from shared.outbox.schema import tasks
from shared.outbox.states import ACTIVE, TERMINAL

T = TypeVar("T")

TENANT = "acme"


class World:
    """One database with the outbox's and the catalogue's tables."""

    def __init__(self, url: str, *, grace_seconds: float = 0.0) -> None:
        self.engine = sa.create_engine(url, pool_size=16, max_overflow=4)
        self.outbox = Outbox(self.engine, "redis://127.0.0.1:1/0", inline=True)
        self.catalogue = register_kinds(self.outbox, grace_seconds=grace_seconds)
        self.db = self.outbox.context.db
        self.secrets = SecretBox(SecretBox.generate_key())

    def close(self) -> None:
        """Close the pool."""
        self.outbox.close(1.0)
        self.engine.dispose()

    def run(self, work: Callable[[Session], T]) -> T:
        """Run one transaction as the services do: again after a deadlock."""
        return self.db.run_session(work)

    # -- requests ------------------------------------------------------------------------------

    def bucket(
        self,
        name: str = "photos",
        *,
        tenant: str = TENANT,
        policy: ReviewPolicy | None = None,
        max_object_bytes: int | None = None,
    ) -> int:
        """Make a bucket on the channels a and b; returns its id."""

        def write(session: Session) -> int:
            ensure_tenant(session, tenant)
            for channel in ("a", "b"):
                put_channel(
                    session,
                    ChannelInput(name=channel, kind="file", settings={"root": f"/{channel}"}),
                    secrets=self.secrets,
                )
            spec = BucketSpec(
                channels=["a", "b"], review_policy=policy, max_object_bytes=max_object_bytes
            )
            return put_bucket(session, tenant, name, spec).bucket.id

        return self.run(write)

    def put(
        self, bucket_id: int, key: str, content: bytes = b"content", **options: Any
    ) -> PutAnswer:
        """Commit a PUT of some content."""
        body = staged(content)
        return self.run(
            lambda session: commit_put(session, self.catalogue, bucket_id, key, body, **options)
        )

    def delete(self, bucket_id: int, key: str, **options: Any) -> DeleteAnswer:
        """Commit a DELETE."""
        return self.run(
            lambda session: delete_object(session, self.catalogue, bucket_id, key, **options)
        )

    def read(self, bucket_id: int, key: str) -> Readable:
        """Find what a GET serves."""

        def find(session: Session) -> Readable:
            from shared.catalog.models import Bucket

            return open_version(session, session.get_one(Bucket, bucket_id), key)

        return self.run(find)

    # -- the worker ----------------------------------------------------------------------------

    def intend(self, version_id: int, *, channel: str = "a") -> int:
        """Write an upload's intent; returns the location's id."""

        def write(session: Session) -> int:
            version = session.get_one(Version, version_id)
            location = Location(
                blob_id=version.blob_id,
                channel=channel,
                key=new_id(),
                state=LocationState.INTENT,
                task_id=version.task_id or 0,
                fence=1,
                attempt=0,
                created_at=utc_now(),
            )
            session.add(location)
            session.flush()
            return location.id

        return self.run(write)

    def store(self, version_id: int, *, location_id: int | None = None) -> bool:
        """Commit an upload, with an own intent unless one is named; False when it may not."""
        intent = self.intend(version_id) if location_id is None else location_id

        def commit(session: Session) -> bool:
            locked = lock_version(session, version_id, content=True)
            if not may_store(locked):
                return False
            version = locked.the_version()
            if locked.winner is None or locked.winner.id == version.blob_id:
                session.execute(
                    sa.update(Location)
                    .where(Location.id == intent)
                    .values(state=LocationState.STORED)
                )
            make_current(session, self.catalogue, locked)
            session.execute(
                sa.update(tasks).where(tasks.c.id == version.task_id).values(state="completed")
            )
            return True

        return self.run(commit)

    def put_stored(self, bucket_id: int, key: str, content: bytes = b"content") -> PutAnswer:
        """Commit a PUT and its upload."""
        answer = self.put(bucket_id, key, content)
        if not answer.instant:
            assert self.store(answer.version_id)
        return answer

    def set_task(self, task_id: int, **values: Any) -> None:
        """Change a task's row, as a claim would."""
        with self.engine.begin() as connection:
            connection.execute(sa.update(tasks).where(tasks.c.id == task_id).values(**values))

    def set_running(self, task_id: int) -> None:
        """Let another process hold a task."""
        self.set_task(
            task_id, state="running", owner="elsewhere:1", fence=1, lease_until=utc_now(30)
        )

    # -- looking -------------------------------------------------------------------------------

    def get(self, entity: type[T], row_id: int) -> T:
        """Return a row as it stands."""
        return self.run(lambda session: session.get_one(entity, row_id))

    def all(self, entity: type[T]) -> list[T]:
        """Return all rows of a table."""
        return self.run(lambda session: list(session.scalars(sa.select(entity))))

    def task(self, task_id: int | None) -> Any:
        """Return a task's row."""
        with self.engine.connect() as connection:
            return connection.execute(sa.select(tasks).where(tasks.c.id == task_id)).one()

    def open_tasks(self, kind: str) -> list[int]:
        """Return the ids of a kind's tasks that have not ended."""
        with self.engine.connect() as connection:
            return list(
                connection.scalars(
                    sa.select(tasks.c.id)
                    .where(tasks.c.kind == kind, tasks.c.state.in_(sorted(ACTIVE)))
                    .order_by(tasks.c.id)
                )
            )

    def tables(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return the content of every table of the catalogue, to see that nothing was written."""
        with self.engine.connect() as connection:
            return {
                name: sorted(map(tuple, connection.execute(sa.select(table))), key=repr)
                for name, table in Base.metadata.tables.items()
            }

    def check(self) -> None:
        """Assert what must hold between the rows whenever nothing is under way."""
        versions = self.all(Version)
        blobs = {blob.id: blob for blob in self.all(Blob)}
        rows = self.all(BlobRef)
        references = {(ref.blob_id, ref.holder_id) for ref in rows if ref.holder_kind == "version"}
        stored = {(v.blob_id, v.id) for v in versions if v.state == VersionState.STORED}
        assert references == stored, "references are not the stored versions"
        for blob in blobs.values():
            is_referred = any(ref.blob_id == blob.id for ref in rows)
            assert is_referred == (blob.state == BlobState.LIVE), f"blob {blob.id} {blob.state}"
        live = [
            (blob.tenant_id, blob.sha256, blob.size_bytes)
            for blob in blobs.values()
            if blob.state in (BlobState.LIVE, BlobState.CONDEMNED)
        ]
        assert len(live) == len(set(live)), "two live blobs of one content"
        for row in self.all(ObjectRow):
            self._check_object(row, [v for v in versions if v.object_id == row.id])
        for version in versions:
            self._check_version(version, blobs[version.blob_id])

    def _check_object(self, row: ObjectRow, own: Sequence[Version]) -> None:
        served = [v for v in own if v.state in ("pending", "failed", "stored")]
        newest = max(served, key=lambda v: v.generation, default=None)
        current = [v for v in own if v.state == VersionState.STORED]
        assert len(current) <= 1
        assert row.current_version_id == (current[0].id if current else None)
        assert row.served_version_id == (newest.id if newest else None)
        assert row.is_listed == int(newest is not None)
        assert (row.size_bytes, row.etag, row.content_type, row.modified_at) == (
            (newest.size_bytes, newest.etag, newest.content_type, newest.created_at)
            if newest
            else (None, None, None, None)
        )
        assert all(v.generation <= row.generation for v in own)

    def _check_version(self, version: Version, blob: Blob) -> None:
        unfinished = version.state in ("pending", "reviewing")
        if unfinished:
            assert self.task(version.task_id).state not in TERMINAL, f"version {version.id} waits"
        elif version.state in ("superseded", "deleted") and version.task_id is not None:
            task = self.task(version.task_id)
            assert task.state in TERMINAL or task.cancel_requested, f"task of {version.id} goes on"
        if unfinished or version.state == "failed":
            assert blob.state == BlobState.STAGED
            assert version.staging_key is not None
        if version.state == VersionState.STORED:
            assert version.staging_key is None


def staged(content: bytes, *, content_type: str = "text/plain") -> Staged:
    """Return the facts of a staged body."""
    return Staged(
        key=new_id(),
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        etag=hashlib.md5(content).hexdigest(),
        content_type=content_type,
        metadata={"colour": "red"},
    )


def together(*works: Callable[[], Any]) -> list[Any]:
    """Run all works in threads that start at the same moment; returns results, or raised errors."""
    barrier = threading.Barrier(len(works))
    answers: list[Any] = [None] * len(works)

    def run(place: int, work: Callable[[], Any]) -> None:
        barrier.wait(timeout=30)
        try:
            answers[place] = work()
        except Exception as error:
            answers[place] = error

    threads = [threading.Thread(target=run, args=(place, work)) for place, work in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    return answers
