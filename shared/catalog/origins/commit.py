"""The worker's side of a pull: what there is to fetch, and how it becomes a version.

Only an absent key is filled: whoever has put or deleted it since the trigger has won, and the bytes
that came are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.context import Catalogue
from shared.catalog.locking import lock_key, share_bucket
from shared.catalog.models import (
    Bucket,
    ObjectRow,
    OriginMiss,
    OriginPull,
    PullState,
    utc_clock,
)
from shared.catalog.origins.policy import StoredRule
from shared.catalog.origins.pulling import living_reason, rule_in_force
from shared.catalog.origins.segments import Segment, drop_segments, segments_of
from shared.catalog.puts import LockedPut, PutAnswer, Staged, lock_put, write_put
from shared.core.errors import NotFoundError, SupersededError
from shared.fetch import Hop


@dataclass(frozen=True, slots=True, kw_only=True)
class PullJob:
    """One pull as the worker sees it. `is_lost`: somebody else has written the key already."""

    pull_id: int
    task_id: int
    bucket_id: int
    key: str
    rule: StoredRule
    max_bytes: int | None
    segments: tuple[Segment, ...]
    age_seconds: float
    is_lost: bool


@dataclass(frozen=True, slots=True)
class Pulled:
    """How a pull ended. `released` are the staging files that nobody needs any more."""

    state: PullState
    answer: PutAnswer | None
    released: tuple[str, ...]


def read_pull(session: Session, pull_id: int, *, task_id: int) -> PullJob | None:
    """Return what a pull has to do, None when it is done.

    Raises SupersededError when it does not wait for this task, or its rule or bucket is gone.
    """
    pull = session.get(OriginPull, pull_id, populate_existing=True)
    if pull is not None and pull.state in (PullState.STORED, PullState.LOST):
        return None
    pull = _waiting(pull, task_id)
    bucket = session.get(Bucket, pull.bucket_id, populate_existing=True)
    rule = _rule(bucket, pull)
    assert bucket is not None
    limits = [limit for limit in (rule.max_bytes, bucket.max_object_bytes) if limit is not None]
    now = session.execute(sa.select(utc_clock())).scalar_one()
    generation = session.scalar(
        sa.select(ObjectRow.generation).where(
            ObjectRow.bucket_id == bucket.id, ObjectRow.key == pull.key
        )
    )
    return PullJob(
        pull_id=pull.id,
        task_id=task_id,
        bucket_id=bucket.id,
        key=pull.key,
        rule=rule,
        max_bytes=min(limits, default=None),
        segments=segments_of(session, pull.id),
        age_seconds=(now - pull.created_at).total_seconds(),
        is_lost=(generation or 0) != pull.generation,
    )


class PullCommit:
    """Makes a version of what came, if the key is still absent: `lock`, then `apply`.

    Without `staged` it only ends a pull that is lost already.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        job: PullJob,
        staged: Staged | None,
        *,
        hops: Sequence[Hop] = (),
        trace_parent: str | None = None,
    ) -> None:
        self._catalogue = catalogue
        self._job = job
        self._staged = staged
        self._hops = hops
        self._trace_parent = trace_parent
        self._put: LockedPut | None = None
        self._pull: OriginPull | None = None

    def lock(self, session: Session) -> None:
        """Lock bucket, object, versions, blobs and the pull, in order.

        Raises SupersededError when the bucket is gone, and TooLargeError.
        """
        job = self._job
        try:
            if self._staged is None:
                share_bucket(session, job.bucket_id)
                lock_key(session, job.bucket_id, job.key, create=False)
            else:
                self._put = lock_put(session, job.bucket_id, job.key, self._staged)
        except NotFoundError as error:
            raise SupersededError("the bucket is gone", pull_id=job.pull_id) from error
        self._pull = lock_pull(session, job.pull_id)

    def apply(self, session: Session) -> Pulled:
        """Write the version and end the pull, or drop the bytes because somebody else has won.

        Raises SupersededError when the pull or its rule is over.
        """
        pull, put = _waiting(self._pull, self._job.task_id), self._put
        answer = None
        released = set(drop_segments(session, pull.id))
        if put is not None:
            _rule(put.bucket, pull)
            reason = living_reason({version.state for version in put.locked.versions.values()})
            if reason is None and put.locked.row.generation == pull.generation:
                answer = write_put(session, self._catalogue, put, trace_parent=self._trace_parent)
        if answer is None:
            pull.state, pull.error_code = PullState.LOST, "key_written"
            if self._staged is not None:
                released.add(self._staged.key)
        else:
            pull.state, pull.version_id, pull.error_code = PullState.STORED, answer.version_id, None
            released.discard(self._staged.key if self._staged else "")
            released |= set(answer.released)
            forget_miss(session, pull.bucket_id, pull.key)
        if self._staged is not None:
            pull.received_bytes = self._staged.size
            pull.hops = {"hops": [list(astuple(hop)) for hop in self._hops]}
        pull.ended_at = utc_clock()
        session.flush()
        return Pulled(PullState(pull.state), answer, tuple(sorted(released)))


def lock_pull(session: Session, pull_id: int) -> OriginPull | None:
    """Lock a pull's row, after its object's."""
    return session.scalars(
        sa.select(OriginPull)
        .where(OriginPull.id == pull_id)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one_or_none()


def forget_miss(session: Session, bucket_id: int, key: str) -> None:
    """Let a key be asked for again."""
    session.execute(
        sa.delete(OriginMiss)
        .where(OriginMiss.bucket_id == bucket_id, OriginMiss.key == key)
        .execution_options(synchronize_session=False)
    )


def _waiting(pull: OriginPull | None, task_id: int) -> OriginPull:
    if pull is None:
        raise SupersededError("the pull is gone")
    if pull.state != PullState.OPEN or pull.task_id != task_id:
        raise SupersededError(f"the pull is {pull.state}", pull_id=pull.id)
    return pull


def _rule(bucket: Bucket | None, pull: OriginPull) -> StoredRule:
    if bucket is None:
        raise SupersededError("the bucket is gone", pull_id=pull.id)
    rule = rule_in_force(bucket, pull.rule)
    if rule is None:
        raise SupersededError("the bucket has another rule by now", pull_id=pull.id)
    return rule
