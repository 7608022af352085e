"""Compares what the rules ask for with the locations there are, page by page, and plans the rest.

A bucket's stored versions are walked for each of its rules, again and again; the first walk of a
new rule is what brings its copies. Safe in several processes: a page is noted by comparing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, cast

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.context import Catalogue
from shared.catalog.locking import lock_blobs
from shared.catalog.models import (
    BlobState,
    Bucket,
    Location,
    LocationState,
    Replica,
    ReplicaRule,
    ReplicaState,
    RuleState,
    Version,
    VersionState,
    by_index,
    utc_clock,
)
from shared.catalog.regions import region_of
from shared.catalog.replicas.limits import PAGE_ROWS, ReplicaLimits
from shared.catalog.replicas.planning import QUEUE, ensure
from shared.core.failpoints import failpoint
from shared.outbox.db import Database

#: Rules that one turn looks after; the next turn begins with those that waited longest.
RULES = 200


class Seen(NamedTuple):
    """A stored version, and what there is of its content on the rule's channel."""

    version_id: int
    blob_id: int
    has_place: bool
    replica: str | None

    @property
    def is_missing(self) -> bool:
        """Tell whether no copy is there."""
        return not self.has_place

    @property
    def needs_work(self) -> bool:
        """Tell whether the row must be made or brought up to what is there.

        Failed ones have a time of their own.
        """
        if self.has_place:
            return self.replica in (None, ReplicaState.GONE)
        return self.replica not in (ReplicaState.PENDING, ReplicaState.FAILED)


class RuleWalk:
    """Walks active rules. One per process."""

    def __init__(self, db: Database, catalogue: Catalogue, limits: ReplicaLimits) -> None:
        self._db = db
        self._catalogue = catalogue
        self._limits = limits

    def run(self, check: Callable[[], None]) -> Counter[str]:
        """Take a turn at every rule, those first that waited longest."""
        counts: Counter[str] = Counter()
        for rule in self._db.run_session(active_rules, read_only=True):
            check()
            if self._is_busy(rule.channel):
                counts["rules_busy"] += 1
                continue
            self._walk(rule, counts, check)
        return counts

    def _is_busy(self, channel: str) -> bool:
        waiting = self._db.run_session(
            lambda session: count_pending(session, channel, at_most=self._limits.backlog),
            read_only=True,
        )
        return waiting >= self._limits.backlog

    def _walk(self, rule: ReplicaRule, counts: Counter[str], check: Callable[[], None]) -> None:
        cursor, missing = rule.cursor, rule.missing_now
        left = self._limits.versions
        while left > 0:
            check()
            page = self._page(rule, cursor)
            left -= PAGE_ROWS
            missing += sum(one.is_missing for one in page)
            counts["compared"] += len(page)
            counts["missing"] += sum(one.is_missing for one in page)
            counts["planned"] += self._plan(rule, [one.blob_id for one in page if one.needs_work])
            failpoint("replicas.after_page")
            is_end = len(page) < PAGE_ROWS
            after = 0 if is_end else page[-1].version_id
            if not self._turn(rule, cursor, after, missing):
                return  # The rule has changed, or another process walks it.
            if is_end or self._is_busy(rule.channel):
                return
            cursor = after

    def _page(self, rule: ReplicaRule, after: int) -> Sequence[Seen]:
        return self._db.run_session(
            lambda session: page_of_versions(session, rule.bucket_id, rule.channel, after),
            read_only=True,
        )

    def _plan(self, rule: ReplicaRule, blob_ids: Sequence[int]) -> int:
        planned = 0
        # One by one: whoever stores or deletes one of them waits for no other.
        for blob_id in sorted(set(blob_ids)):
            planned += self._db.run_session(partial(self._plan_one, rule=rule, blob_id=blob_id))
        return planned

    def _plan_one(self, session: Session, *, rule: ReplicaRule, blob_id: int) -> bool:
        blob = lock_blobs(session, [blob_id]).get(blob_id)
        bucket = session.get(Bucket, rule.bucket_id)
        if blob is None or blob.state != BlobState.LIVE or bucket is None:
            return False
        if rule.channel not in (bucket.replica_channels or ()):
            return False
        region = region_of(session, bucket, QUEUE)
        return ensure(session, self._catalogue, blob, rule.channel, region=region)

    def _turn(self, rule: ReplicaRule, before: int, after: int, missing: int) -> bool:
        return self._db.run_session(
            lambda session: note_turn(session, rule, before, after, missing)
        )


def active_rules(session: Session) -> Sequence[ReplicaRule]:
    """Return the rules whose turn it is."""
    return rules_in(session, RuleState.ACTIVE)


def rules_in(session: Session, state: RuleState) -> Sequence[ReplicaRule]:
    """Return rules of a state, those first that waited longest."""
    return session.scalars(
        sa.select(ReplicaRule)
        .where(ReplicaRule.state == state)
        .order_by(ReplicaRule.turned_at, ReplicaRule.id)
        .limit(RULES)
    ).all()


def count_pending(session: Session, channel: str, *, at_most: int) -> int:
    """Count the copies that wait on a channel, up to a number."""
    page = (
        sa.select(Replica.id)
        .where(Replica.state == ReplicaState.PENDING, Replica.channel == channel)
        .limit(at_most)
        .subquery()
    )
    return session.scalar(sa.select(sa.func.count()).select_from(page)) or 0


def page_of_versions(session: Session, bucket_id: int, channel: str, after: int) -> Sequence[Seen]:
    """Return a page of a bucket's stored versions and what of them is on a channel."""
    has_place = sa.exists().where(
        Location.blob_id == Version.blob_id,
        Location.state == LocationState.STORED,
        Location.channel == channel,
        # What is known to be lost is no copy.
        Location.id != sa.func.coalesce(Replica.lost_location_id, 0),
    )
    statement = (
        sa.select(Version.id, Version.blob_id, has_place, Replica.state)
        .outerjoin(Replica, sa.and_(Replica.blob_id == Version.blob_id, Replica.channel == channel))
        .where(
            Version.bucket_id == bucket_id,
            Version.state == VersionState.STORED,
            Version.id > after,
        )
        .order_by(Version.id)
        .limit(PAGE_ROWS)
    )
    statement = by_index(statement, Version, "ix_versions_bucket")
    return [Seen(row[0], row[1], bool(row[2]), row[3]) for row in session.execute(statement)]


def note_turn(session: Session, rule: ReplicaRule, before: int, after: int, missing: int) -> bool:
    """Move a rule's cursor if it is still where it was; `after` 0 ends the pass."""
    values: dict[str, object] = {"cursor": after, "turned_at": utc_clock(), "missing_now": missing}
    if after == 0:
        values |= {"missing_now": 0, "missing": missing, "passed_at": utc_clock()}
    done = session.execute(
        sa.update(ReplicaRule)
        .where(
            ReplicaRule.id == rule.id,
            ReplicaRule.cursor == before,
            ReplicaRule.changed_at == rule.changed_at,
        )
        .values(**values)
        .execution_options(synchronize_session=False)
    )
    return cast("sa.CursorResult[object]", done).rowcount == 1
