"""The worker's side of a resumable upload: what there is to join, and the commit of the version."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.conditions import Conditions
from shared.catalog.context import Catalogue
from shared.catalog.lifecycle import Lifetime
from shared.catalog.locking import lock_tasks
from shared.catalog.models import Bucket, SessionState, UploadSession, utc_clock, utc_now
from shared.catalog.payloads import AssembleUpload
from shared.catalog.puts import LockedPut, PutAnswer, Staged, lock_put, write_put
from shared.catalog.uploading.parts import drop_parts, parts_of
from shared.catalog.uploading.rules import conditions_of, lifetime_of
from shared.catalog.uploading.sessions import RESULT_SECONDS, LockedSession, lock_session_by_id
from shared.core.errors import SupersededError
from shared.storage.staging_joins import Piece


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """What is to be joined, in order, and what the whole was declared to be."""

    session_id: int
    generation: int | None
    bucket_id: int
    key: str
    size: int
    sha256: str | None
    content_type: str
    metadata: dict[str, str]
    conditions: Conditions
    lifetime: Lifetime
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Assembled:
    """The version that was made. `released` are the staging files that nobody needs any more."""

    answer: PutAnswer
    released: tuple[str, ...]


def read_assembly(session: Session, payload: AssembleUpload, *, task_id: int) -> Assembly | None:
    """Return what an assembly has to do, None when its session has its result already.

    Raises SupersededError when the session does not wait for this task.
    """
    row = session.get(UploadSession, payload.session_id, populate_existing=True)
    if row is not None and row.state == SessionState.DONE:
        return None
    row = _waiting(row, task_id)
    pieces = tuple(
        Piece(
            number=part.number,
            staging_key=part.staging_key,
            size=part.size_bytes,
            sha256=part.sha256,
            md5=part.md5,
        )
        for part in parts_of(session, row.id)
    )
    return Assembly(
        session_id=row.id,
        generation=payload.generation,
        bucket_id=row.bucket_id,
        key=row.key,
        size=sum(piece.size for piece in pieces),
        sha256=row.sha256,
        content_type=row.content_type,
        metadata=dict(row.user_metadata),
        conditions=conditions_of(row.conditions),
        lifetime=lifetime_of(row.lifetime),
        pieces=pieces,
    )


class AssemblyCommit:
    """Makes the version as a PUT does and gives the session its result: `lock`, then `apply`."""

    def __init__(
        self,
        catalogue: Catalogue,
        assembly: Assembly,
        staged: Staged,
        *,
        task_id: int,
        trace_parent: str | None,
    ) -> None:
        self._catalogue = catalogue
        self._assembly = assembly
        self._staged = staged
        self._task_id = task_id
        self._trace_parent = trace_parent
        self._put: LockedPut | None = None
        self._session: LockedSession | None = None

    def lock(self, session: Session) -> None:
        """Lock bucket, object, versions, blobs, the session and the tasks, in order.

        Raises what a PUT's commit raises (PreconditionError, NotFoundError, TooLargeError), and
        SupersededError when somebody has written the key since the upload was completed.
        """
        assembly = self._assembly
        self._put = lock_put(
            session,
            assembly.bucket_id,
            assembly.key,
            self._staged,
            conditions=assembly.conditions,
            generation=assembly.generation,
        )
        self._session = lock_session_by_id(session, assembly.session_id)
        lock_tasks(session, [self._task_id, *self._put.older_tasks])

    def apply(self, session: Session) -> Assembled:
        """Write the version and the result. Raises SupersededError when the session was given up.

        The part rows go with it: what was frozen is in the version's bytes now.
        """
        put = self._put
        if put is None:
            raise AssertionError("apply comes after lock")
        row = _waiting(None if self._session is None else self._session.row, self._task_id)
        answer = write_put(session, self._catalogue, put, trace_parent=self._trace_parent)
        keys = set(drop_parts(session, parts_of(session, row.id)))
        row.state = SessionState.DONE
        row.version_id = answer.version_id
        row.result = {
            "bucket": put.bucket.name,
            "key": self._assembly.key,
            "version_id": answer.version_id,
            "generation": answer.generation,
            "state": str(answer.state),
            "task_id": answer.task_id,
            "etag": answer.etag,
            "size": answer.size,
            "sha256": self._staged.sha256,
        }
        row.ended_at = utc_clock()
        row.expires_at = utc_now(RESULT_SECONDS)
        session.flush()
        # A lone part has become the version's own file.
        keys.discard(self._staged.key)
        return Assembled(answer, tuple(sorted(keys | set(answer.released))))


def bucket_of(session: Session, row: UploadSession) -> str | None:
    """Return the name of a session's bucket, None when that is gone."""
    return session.scalar(sa.select(Bucket.name).where(Bucket.id == row.bucket_id))


def _waiting(row: UploadSession | None, task_id: int) -> UploadSession:
    if row is None:
        raise SupersededError("the upload is gone")
    if row.state != SessionState.COMPLETING or row.task_id != task_id:
        raise SupersededError(f"the upload is {row.state}", session_id=row.id)
    return row
