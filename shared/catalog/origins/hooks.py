"""What happens to a pull when its task ends without its handler, or is tried again by hand."""

from __future__ import annotations

import contextlib
from typing import cast

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.orm import Session

from shared.catalog.locking import LockedKey, lock_key, share_bucket
from shared.catalog.models import Bucket, OriginMiss, OriginPull, PullState, utc_clock, utc_now
from shared.catalog.origins.commit import forget_miss, lock_pull
from shared.catalog.origins.policy import StoredRule
from shared.catalog.origins.pulling import living_reason, rule_in_force
from shared.catalog.origins.segments import drop_segments
from shared.catalog.payloads import PullOrigin
from shared.core.errors import ConflictError, NotFoundError
from shared.outbox.kinds import EndedTask

#: The origin says that the key is not there: remembered for another time than failures.
MISSING = "origin_missing"
_FAILED = "failed"
_MISSES = cast("sa.Table", OriginMiss.__table__)


class PullHooks:
    """Hooks of `origin.pull`: no pull stays open without its task, and a miss is remembered."""

    def lock(self, session: Session, payload: PullOrigin) -> None:
        """Lock the key, then the pull."""
        _lock(session, payload.pull_id)

    def on_end(self, session: Session, task: EndedTask, outcome: str) -> None:
        """End the pull; a failed one is not begun again by a GET for as long as its rule says.

        Files of what had come are not named any more: the staging cleanup removes them.
        """
        pull = lock_pull(session, _pull_id(task))
        if pull is None or pull.state != PullState.OPEN or pull.task_id != task.id:
            return
        pull.state = PullState.FAILED if outcome == _FAILED else PullState.CANCELLED
        pull.error_code = task.error_code or outcome
        pull.ended_at = utc_clock()
        drop_segments(session, pull.id)
        bucket = session.get(Bucket, pull.bucket_id)
        rule = None if bucket is None else rule_in_force(bucket, pull.rule)
        if rule is not None and pull.state == PullState.FAILED:
            _remember(session, pull, rule, pull.error_code)
        session.flush()

    def on_retry(self, session: Session, task: EndedTask) -> None:
        """Open the pull again: a new trigger, at the object's present generation.

        Raises ConflictError when the key is there by now, or another pull is open.
        """
        pull_id = _pull_id(task)
        locked = _lock(session, pull_id)
        pull = lock_pull(session, pull_id)
        bucket = None if pull is None else session.get(Bucket, pull.bucket_id)
        if pull is None or bucket is None or rule_in_force(bucket, pull.rule) is None:
            raise ConflictError("the rule of this pull is gone", code="origin_rule_gone")
        if pull.state in (PullState.STORED, PullState.LOST):
            raise ConflictError(f"the pull is {pull.state}", code="pull_over")
        states = set() if locked is None else {one.state for one in locked.versions.values()}
        if living_reason(states) is not None:
            raise ConflictError("the key is there by now", code="object_exists")
        if pull.state != PullState.OPEN and _is_another_open(session, pull):
            raise ConflictError("the key is being pulled already", code="pull_open")
        pull.state, pull.error_code, pull.ended_at = PullState.OPEN, None, None
        pull.task_id, pull.created_at = task.id, utc_clock()
        pull.generation = 0 if locked is None else locked.row.generation
        forget_miss(session, pull.bucket_id, pull.key)
        session.flush()


def _lock(session: Session, pull_id: int) -> LockedKey | None:
    found = session.execute(
        sa.select(OriginPull.bucket_id, OriginPull.key).where(OriginPull.id == pull_id)
    ).one_or_none()
    if found is None:
        return None
    with contextlib.suppress(NotFoundError):
        share_bucket(session, found[0])
    locked = lock_key(session, found[0], found[1], create=False)
    lock_pull(session, pull_id)
    return locked


def _is_another_open(session: Session, pull: OriginPull) -> bool:
    return bool(
        session.scalar(
            sa.select(
                sa.exists().where(
                    OriginPull.bucket_id == pull.bucket_id,
                    OriginPull.key == pull.key,
                    OriginPull.rule == pull.rule,
                    OriginPull.open_slot == 1,
                )
            )
        )
    )


def _remember(session: Session, pull: OriginPull, rule: StoredRule, code: str) -> None:
    seconds = rule.missing_seconds if code == MISSING else rule.failed_seconds
    if seconds <= 0:
        return
    facts = {"rule": pull.rule, "code": code, "expires_at": utc_now(seconds)}
    values = {"bucket_id": pull.bucket_id, "object_key": pull.key, **facts}
    if session.get_bind().dialect.name == "sqlite":
        upsert = sqlite.insert(_MISSES).values(values)
        session.execute(
            upsert.on_conflict_do_update(index_elements=["bucket_id", "object_key"], set_=facts)
        )
        return
    session.execute(mysql.insert(_MISSES).values(values).on_duplicate_key_update(**facts))


def _pull_id(task: EndedTask) -> int:
    if not isinstance(task.payload, PullOrigin):
        raise TypeError(f"the payload of {task.kind} names no pull")
    return task.payload.pull_id
