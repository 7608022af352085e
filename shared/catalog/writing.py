"""Writing a version row: the next generation of a key, and content that is stored already.

Shared by every request that writes a version. The caller holds the key's locks and has judged
conditions; nothing here reads a body.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from sqlalchemy.orm import Session

from shared.catalog.context import Catalogue
from shared.catalog.expiries import note_expiry
from shared.catalog.lifecycle import UNTIMED, Lifetime
from shared.catalog.locking import LockedKey
from shared.catalog.models import Blob, Bucket, Version, VersionState
from shared.catalog.supersede import supersede_rows
from shared.catalog.versions import make_current


@dataclass(frozen=True, slots=True, kw_only=True)
class PutAnswer:
    """What was written. The staging files of `released` may be unlinked after the commit.

    They belong to older versions that it superseded, and with `instant` to its own.
    """

    version_id: int
    generation: int
    state: str
    task_id: int | None
    etag: str
    size: int
    modified_at: dt.datetime
    instant: bool
    released: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a new version is made of. `generation` was taken before; None: it is the next one."""

    size: int
    sha256: str
    etag: str
    content_type: str
    sniffed_type: str | None
    metadata: dict[str, str]
    staging_key: str | None
    lifetime: Lifetime = UNTIMED
    generation: int | None = None


@dataclass(frozen=True, slots=True)
class LockedPut:
    """A write between its locks and its rows."""

    bucket: Bucket
    locked: LockedKey
    facts: Facts

    @property
    def older_tasks(self) -> list[int]:
        """Return the tasks that this write may end, ascending."""
        older = self.locked.unfinished(below_generation=self.locked.row.generation + 1)
        return sorted({one.task_id for one in older if one.task_id is not None})


def store_at_once(
    session: Session, catalogue: Catalogue, bucket: Bucket, locked: LockedKey, facts: Facts
) -> PutAnswer:
    """Make a version of content that is stored already current, without a task."""
    version, superseded = write_at_once(session, catalogue, bucket, locked, facts)
    if superseded:
        catalogue.tasks.supersede(session, superseded)
    return answer_of(version, locked, instant=True)


def write_at_once(
    session: Session, catalogue: Catalogue, bucket: Bucket, locked: LockedKey, facts: Facts
) -> tuple[Version, list[int]]:
    """Do what `store_at_once` does, but leave the older tasks to the caller: their ids, ascending.

    `locked.winner` is the blob, locked and among the key's.
    """
    winner = locked.winner
    if winner is None:
        raise LookupError("no blob holds the content")
    version = insert_version(session, bucket, locked, facts, winner, VersionState.PENDING)
    locked.version = version
    superseded = supersede_rows(session, catalogue, locked, below_generation=version.generation)
    make_current(session, catalogue, locked)
    return version, superseded


def insert_version(
    session: Session,
    bucket: Bucket,
    locked: LockedKey,
    facts: Facts,
    blob: Blob,
    state: VersionState,
) -> Version:
    """Insert the next generation of the key, or the one that was taken for it.

    Raises InvalidError for a lifetime that is none.
    """
    generation = facts.generation or locked.row.generation + 1
    version = Version(
        object_id=locked.row.id,
        bucket_id=bucket.id,
        tenant_id=bucket.tenant_id,
        generation=generation,
        state=state,
        blob_id=blob.id,
        size_bytes=facts.size,
        sha256=facts.sha256,
        etag=facts.etag,
        content_type=facts.content_type,
        sniffed_type=facts.sniffed_type,
        user_metadata=facts.metadata,
        staging_key=facts.staging_key,
        created_at=locked.now,
    )
    session.add(version)
    session.flush()
    note_expiry(session, bucket, locked.row.key, version, facts.lifetime.end(locked.now))
    # Written together with what `refresh` sets.
    locked.row.generation = max(generation, locked.row.generation)
    locked.versions[version.id] = version
    return version


def answer_of(version: Version, locked: LockedKey, *, instant: bool) -> PutAnswer:
    """Return what a request is told of the version that it wrote."""
    return PutAnswer(
        version_id=version.id,
        generation=version.generation,
        state=version.state,
        task_id=version.task_id,
        etag=version.etag,
        size=version.size_bytes,
        modified_at=version.created_at,
        instant=instant,
        released=tuple(locked.released),
    )
