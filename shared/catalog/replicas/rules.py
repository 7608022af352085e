"""On which channels a content is to stand, as the buckets that refer to it say.

A bucket's `replica_channels` count; its `ReplicaRule` rows keep when each rule came and went, and
how far the job has walked the bucket for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import (
    BlobRef,
    Bucket,
    HolderKind,
    ReplicaRule,
    RuleState,
    Version,
    utc_clock,
)
from shared.catalog.regions import region_for


class Wanted(NamedTuple):
    """The channels that the buckets of a content name: as candidates, and for replicas.

    `region` is that of one of these buckets: where work for the content is to be done.
    """

    candidates: frozenset[str]
    replicas: frozenset[str]
    region: str

    def allows(self, channel: str) -> bool:
        """Tell whether a copy on the channel is there for a reason."""
        return channel in self.candidates or channel in self.replicas


def wanted(session: Session, blob_id: int) -> Wanted:
    """Return where the buckets that refer to a blob want it."""
    bucket_ids = (
        sa.select(Version.bucket_id)
        .join(BlobRef, BlobRef.holder_id == Version.id)
        .where(BlobRef.blob_id == blob_id, BlobRef.holder_kind == HolderKind.VERSION)
        .distinct()
    )
    buckets = session.execute(
        sa.select(
            Bucket.channels,
            Bucket.replica_channels,
            Bucket.region,
            Bucket.region_fallback_seconds,
        )
        .where(Bucket.id.in_(bucket_ids))
        .order_by(Bucket.id)
    ).all()
    return Wanted(
        candidates=frozenset(name for row in buckets for name in row.channels),
        replicas=frozenset(name for row in buckets for name in row.replica_channels or ()),
        region=region_for(session, buckets[0].region, buckets[0].region_fallback_seconds, "replica")
        if buckets
        else "",
    )


def set_rules(session: Session, bucket: Bucket, channels: Sequence[str]) -> None:
    """Make these the bucket's replica channels and record what changed; it is locked or new.

    Contents that are there already are the job's: it walks the bucket for each new rule.
    """
    before, after = set(bucket.replica_channels or ()), set(channels)
    bucket.replica_channels = list(channels) or None
    if before == after:
        return
    session.flush()
    known = {
        rule.channel: rule
        for rule in session.scalars(
            sa.select(ReplicaRule).where(ReplicaRule.bucket_id == bucket.id).with_for_update()
        )
    }
    for channel in sorted(after - before):
        rule = known.get(channel)
        if rule is None:
            rule = ReplicaRule(
                tenant_id=bucket.tenant_id,
                bucket_id=bucket.id,
                channel=channel,
                created_at=utc_clock(),
            )
            session.add(rule)
        _begin(rule, RuleState.ACTIVE)
    for channel in sorted(before - after):
        if channel in known:
            _begin(known[channel], RuleState.REMOVED)
    session.flush()


def end_rules(session: Session, bucket_id: int) -> None:
    """Record that the rules of a bucket ended with it; it holds nothing any more."""
    session.execute(
        sa.update(ReplicaRule)
        .where(ReplicaRule.bucket_id == bucket_id, ReplicaRule.state != RuleState.ENDED)
        .values(state=RuleState.ENDED, removed_at=utc_clock())
        .execution_options(synchronize_session=False)
    )


def _begin(rule: ReplicaRule, state: RuleState) -> None:
    rule.state = state
    rule.cursor, rule.missing_now, rule.missing = 0, 0, None
    rule.turned_at = rule.changed_at = utc_clock()
    rule.passed_at = None
    rule.removed_at = utc_clock() if state == RuleState.REMOVED else None
