"""The beginning of a pull: a key that is absent, one open pull per rule, and who waits for it.

A GET that would be a 404 begins one, or somebody who asks for it. The row is unique while it is
open, over all nodes; whoever comes second finds the first one's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shared.catalog.buckets import way_of
from shared.catalog.context import Catalogue
from shared.catalog.limits import check_key
from shared.catalog.models import (
    LIVING,
    Bucket,
    ObjectRow,
    OriginMiss,
    OriginPull,
    PullState,
    Version,
    VersionState,
    utc_clock,
)
from shared.catalog.origins.policy import StoredOrigin, StoredRule
from shared.catalog.payloads import ORIGIN_PULL, PullOrigin
from shared.catalog.regions import region_of
from shared.catalog.uploading.arriving import is_arriving
from shared.core.errors import ConflictError, NotFoundError

QUEUE = "origin"


@dataclass(frozen=True, slots=True)
class Pulling:
    """An open pull; `created` tells whether this call began it."""

    pull_id: int
    task_id: int | None
    created: bool


@dataclass(frozen=True, slots=True)
class NothingToPull:
    """Why there is none: the key is `present`, `reviewing`, `blocked`, `being uploaded` or lately
    `missed`.
    """

    reason: str


def rule_of(bucket: Bucket, key: str) -> StoredRule | None:
    """Return the rule of a bucket that counts for a key."""
    return None if bucket.origin is None else _rules(bucket).rule_for(key)


def rule_in_force(bucket: Bucket, rule_id: str) -> StoredRule | None:
    """Return the rule of a pull, None when the bucket has it no more."""
    return None if bucket.origin is None else _rules(bucket).rule(rule_id)


def begin_pull(
    session: Session,
    catalogue: Catalogue,
    bucket: Bucket,
    key: str,
    rule: StoredRule,
    *,
    is_asked_for: bool = False,
    trace_parent: str | None = None,
) -> Pulling | NothingToPull:
    """Begin the pull of an absent key, or find the one that is open.

    What was missed lately, or rejected by a review, is pulled only when it is asked for by name.
    """
    row = session.scalars(
        sa.select(ObjectRow)
        .where(ObjectRow.bucket_id == bucket.id, ObjectRow.key == key)
        .execution_options(populate_existing=True)
    ).one_or_none()
    if row is not None and (reason := _occupied(session, row, is_asked_for=is_asked_for)):
        return NothingToPull(reason)
    if row is not None and is_arriving(session, bucket, key):
        return NothingToPull("being uploaded")
    found = _open_pull(session, bucket.id, key, rule.id)
    if found is not None:
        return found
    if not is_asked_for and is_missed(session, bucket.id, key, rule.id):
        return NothingToPull("missed")
    pull = OriginPull(
        tenant_id=bucket.tenant_id,
        bucket_id=bucket.id,
        key=key,
        rule=rule.id,
        state=PullState.OPEN,
        generation=0 if row is None else row.generation,
        created_at=utc_clock(),
    )
    try:
        with session.begin_nested():
            session.add(pull)
    except IntegrityError:
        # Another node began it in this very moment; its commit is what the refusal waited for.
        found = _open_pull(session, bucket.id, key, rule.id)
        if found is None:
            raise
        return found
    enqueued = catalogue.tasks.enqueue(
        session,
        ORIGIN_PULL,
        PullOrigin(pull_id=pull.id),
        tenant_id=bucket.tenant_id,
        region=region_of(session, bucket, QUEUE),
        trace_parent=trace_parent,
    )
    pull.task_id = enqueued.id
    session.flush()
    return Pulling(pull.id, enqueued.id, created=True)


def pull_now(
    session: Session,
    catalogue: Catalogue,
    bucket: Bucket,
    key: str,
    *,
    admit: Callable[[str], None] = lambda _region: None,
    trace_parent: str | None = None,
) -> OriginPull:
    """Begin the pull of an absent key that somebody asks for by name, or find the one that is open.

    `admit` is asked, and may refuse, with the region that the work goes to. Raises ConflictError:
    `origin_no_rule`, `object_exists`; SwitchedOffError.
    """
    check_key(key)
    catalogue.need(QUEUE, *way_of(bucket))
    rule = rule_of(bucket, key)
    if rule is None:
        raise ConflictError("no rule of the bucket counts for this key", code="origin_no_rule")
    admit(region_of(session, bucket, QUEUE))
    begun = begin_pull(
        session, catalogue, bucket, key, rule, is_asked_for=True, trace_parent=trace_parent
    )
    if isinstance(begun, NothingToPull):
        raise ConflictError(f"the object is {begun.reason}", code="object_exists")
    pull = get_pull(session, bucket.id, begun.pull_id)
    session.refresh(pull)
    return pull


def is_missed(session: Session, bucket_id: int, key: str, rule_id: str) -> bool:
    """Tell whether the key was not to be had lately."""
    return bool(
        session.scalar(
            sa.select(
                sa.exists().where(
                    OriginMiss.bucket_id == bucket_id,
                    OriginMiss.key == key,
                    OriginMiss.rule == rule_id,
                    OriginMiss.expires_at > utc_clock(),
                )
            )
        )
    )


def get_pull(session: Session, bucket_id: int, pull_id: int) -> OriginPull:
    """Return a bucket's pull. Raises NotFoundError (`origin_pull_not_found`)."""
    pull = session.scalars(
        sa.select(OriginPull).where(OriginPull.id == pull_id, OriginPull.bucket_id == bucket_id)
    ).one_or_none()
    if pull is None:
        raise NotFoundError("there is no such pull", code="origin_pull_not_found")
    return pull


def ended_pulls(session: Session, pull_ids: Sequence[int]) -> set[int]:
    """Return those of the pulls that are over (or gone): one look for all that wait."""
    still_open = session.scalars(
        sa.select(OriginPull.id).where(
            OriginPull.id.in_(pull_ids), OriginPull.state == PullState.OPEN
        )
    )
    return set(pull_ids) - set(still_open)


def living_reason(states: set[str]) -> str | None:
    """Return why versions in these states keep a key from being filled, None when none does."""
    living = states & LIVING
    if not living:
        return None
    return "reviewing" if living == {VersionState.REVIEWING} else "present"


def _occupied(session: Session, row: ObjectRow, *, is_asked_for: bool) -> str | None:
    states = set(
        session.scalars(
            sa.select(Version.state).where(
                Version.object_id == row.id, Version.state.in_(sorted(LIVING))
            )
        )
    )
    reason = living_reason(states)
    if reason is None and not is_asked_for:
        newest = session.scalar(
            sa.select(Version.state)
            .where(Version.object_id == row.id)
            .order_by(Version.generation.desc())
            .limit(1)
        )
        # Or every GET would fetch again what a review has rejected.
        return "blocked" if newest == VersionState.BLOCKED else None
    return reason


def _open_pull(session: Session, bucket_id: int, key: str, rule_id: str) -> Pulling | None:
    found = session.execute(
        sa.select(OriginPull.id, OriginPull.task_id).where(
            OriginPull.bucket_id == bucket_id,
            OriginPull.key == key,
            OriginPull.rule == rule_id,
            OriginPull.open_slot == 1,
        )
    ).one_or_none()
    return None if found is None else Pulling(found[0], found[1], created=False)


def _rules(bucket: Bucket) -> StoredOrigin:
    return StoredOrigin.model_validate(bucket.origin)
