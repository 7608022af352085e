"""The worker's side of a copy over channels: what there is to bring where, and its commit."""

from __future__ import annotations

from dataclasses import dataclass, replace

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.blobs import drop_reference, has_stored_location
from shared.catalog.context import Catalogue
from shared.catalog.copies import facts_of, is_placed, refuse_unreviewed, write_copy
from shared.catalog.copying import CopyCommit
from shared.catalog.holds import refuse_held
from shared.catalog.lifecycle import Lifetime
from shared.catalog.listing import under
from shared.catalog.locking import LockedKey, lock_tasks, share_bucket
from shared.catalog.many_keys import lock_keys
from shared.catalog.models import (
    Blob,
    Bucket,
    Copy,
    CopyState,
    HolderKind,
    Version,
    by_index,
    utc_clock,
)
from shared.catalog.supersede import is_last_word
from shared.catalog.writing import PutAnswer
from shared.core.errors import (
    ConflictError,
    NotFoundError,
    PermanentError,
    SupersededError,
    TransientError,
)

#: Every key's generations are above it, so that a copy at this one has lost.
_NEVER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFacts:
    """One copy to be made. `is_placed` tells that the bytes are on one of the channels already."""

    copy_id: int
    blob_id: int
    size_bytes: int
    sha256: str
    channels: tuple[str, ...]
    is_placed: bool


def read_copy(session: Session, copy_id: int) -> CopyFacts | None:
    """Return what a `replica.object` task has to do, None when the copy is over.

    Raises SupersededError when its bucket is gone, or a deletion by prefix has ended it.
    """
    copy = session.get(Copy, copy_id)
    if copy is None or copy.state != CopyState.PENDING:
        return None
    if copy.generation == _NEVER:
        raise SupersededError("the key was deleted", copy_id=copy_id)
    bucket = session.get(Bucket, copy.target_bucket_id)
    blob = session.get(Blob, copy.blob_id)
    if bucket is None or blob is None:
        raise SupersededError("the target's bucket is gone", copy_id=copy_id)
    return CopyFacts(
        copy_id=copy.id,
        blob_id=blob.id,
        size_bytes=blob.size_bytes,
        sha256=blob.sha256,
        channels=tuple(bucket.channels),
        is_placed=is_placed(session, blob, bucket),
    )


class ObjectCopyCommit:
    """The commit of a copy: `lock` takes the domain rows, `apply` writes.

    `placed` is the commit of the bytes on the target's channel, None when they were there already.
    """

    def __init__(
        self, catalogue: Catalogue, *, copy_id: int, task_id: int, placed: CopyCommit | None = None
    ) -> None:
        self._catalogue = catalogue
        self._copy_id = copy_id
        self._task_id = task_id
        self._placed = placed
        self._keys: dict[int, LockedKey] = {}

    @property
    def released(self) -> tuple[str, ...]:
        """The staging files that nobody needs any more, once it is committed."""
        return tuple(key for locked in self._keys.values() for key in locked.released)

    def lock(self, session: Session) -> None:
        """Lock both buckets and keys, the content, its new place, the copy and the tasks."""
        copy, version = _read(session, self._copy_id)
        buckets = {copy.target_bucket_id, *([version.bucket_id] if copy.is_move else [])}
        try:
            for bucket_id in sorted(buckets):
                share_bucket(session, bucket_id)
        except NotFoundError as error:
            raise SupersededError("a bucket is gone", copy_id=copy.id) from error
        ids = {copy.target_object_id, *([version.object_id] if copy.is_move else [])}
        self._keys = lock_keys(session, ids, blob_id=copy.blob_id)
        if self._placed is not None:
            self._placed.lock(session)
        lock_copy(session, self._copy_id)
        older = self._keys[copy.target_object_id].unfinished(below_generation=copy.generation + 1)
        lock_tasks(session, [self._task_id, *(v.task_id for v in older if v.task_id is not None)])

    def apply(self, session: Session) -> PutAnswer:
        """Make the target's version stored and current; end the source's when it is a move.

        It has the generation that it was asked for at, so that what is in review since then wins
        when it passes.
        Raises SupersededError when the target was written or the moved source changed meanwhile,
        PermanentError when the copy is not allowed any more, and TransientError when the bytes that
        were there are to be brought after all. None of them writes anything.
        """
        copy, version = _read(session, self._copy_id)
        target = self._keys[copy.target_object_id]
        if copy.state != CopyState.PENDING or not is_last_word(
            session, target.row, copy.generation, task_id=copy.task_id
        ):
            raise SupersededError("a newer write has won", copy_id=copy.id)
        moved_from = self._keys[version.object_id] if copy.is_move else None
        if moved_from is not None and moved_from.stored is not version:
            raise SupersededError("the source has changed", copy_id=copy.id)
        bucket = session.get_one(Bucket, copy.target_bucket_id)
        try:
            if moved_from is not None:
                refuse_held(session, moved_from)
            refuse_unreviewed(
                session, bucket, sha256=version.sha256, content_type=copy.content_type
            )
        except ConflictError as error:
            raise PermanentError(str(error), code=error.code, copy_id=copy.id) from error
        blob = target.blobs[copy.blob_id]
        if self._placed is not None:
            self._placed.apply(session)
        elif not is_placed(session, blob, bucket):
            raise TransientError("the content has left the bucket's channels", copy_id=copy.id)
        elif not has_stored_location(session, blob.id):
            raise TransientError("the content is lost", copy_id=copy.id)
        facts = facts_of(
            version,
            content_type=copy.content_type,
            metadata=dict(copy.user_metadata),
            lifetime=Lifetime(at=copy.expires_at, is_kept=True),
        )
        facts = replace(facts, generation=copy.generation)
        copy.state, copy.ended_at = CopyState.COMPLETED, utc_clock()
        answer = write_copy(
            session,
            self._catalogue,
            bucket,
            target,
            version=version,
            blob=blob,
            facts=facts,
            moved_from=moved_from,
            is_now=False,
        )
        copy.version_id = answer.version_id
        session.flush()
        drop_reference(session, self._catalogue, blob, HolderKind.COPY, copy.id)
        return answer


def lock_copy(session: Session, copy_id: int) -> Copy | None:
    """Lock a copy's row, after all objects, blobs and locations."""
    return session.get(Copy, copy_id, with_for_update=True, populate_existing=True)


def outrun_copies(session: Session, bucket_id: int, prefix: str) -> None:
    """Let all copies under way to keys with a prefix find that somebody else has won.

    Waits for those that are being committed: their versions are there when this returns.
    """
    statement = sa.select(Copy.id).where(
        Copy.state == CopyState.PENDING,
        Copy.target_bucket_id == bucket_id,
        *under(Copy.target_key, prefix),
    )
    found = session.scalars(by_index(statement, Copy, "ix_copies_state")).all()
    for copy_id in sorted(found):
        copy = lock_copy(session, copy_id)
        if copy is not None and copy.state == CopyState.PENDING:
            copy.generation = _NEVER
    session.flush()


def find_copy(session: Session, bucket_id: int, copy_id: int) -> Copy:
    """Return a copy into a bucket. Raises NotFoundError (`copy_not_found`)."""
    copy = session.get(Copy, copy_id)
    if copy is None or copy.target_bucket_id != bucket_id:
        raise NotFoundError("there is no such copy", code="copy_not_found")
    return copy


def _read(session: Session, copy_id: int) -> tuple[Copy, Version]:
    row = session.execute(
        sa.select(Copy, Version)
        .join(Version, Version.id == Copy.source_version_id)
        .where(Copy.id == copy_id)
    ).one_or_none()
    if row is None:
        raise SupersededError("the copy is gone", copy_id=copy_id)
    return row[0], row[1]
