"""Copies that only a removed rule had asked for: given to the sweep, one proven copy staying.

A content loses its copy on the channel when the grace after the change is over, no other bucket
asks for it there, and another copy has just been found on a channel where one is wanted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import sqlalchemy as sa
import structlog
from sqlalchemy.orm import Session

from shared.catalog.erasing import ChannelBook
from shared.catalog.locking import lock_blobs
from shared.catalog.models import (
    BlobState,
    Location,
    LocationState,
    ReplicaRule,
    ReplicaState,
    RuleState,
    utc_clock,
    utc_now,
)
from shared.catalog.places import lock_location, lost_places, stored_places
from shared.catalog.replicas.limits import PAGE_ROWS, ReplicaLimits
from shared.catalog.replicas.planning import find, let_go
from shared.catalog.replicas.rules import wanted
from shared.catalog.replicas.walking import note_turn, page_of_versions, rules_in
from shared.core.clock import Deadline
from shared.core.errors import BloxError
from shared.core.failpoints import failpoint
from shared.outbox.db import Database
from shared.storage.errors import ChannelError

#: Seconds that one question to a channel may take.
ASK_SECONDS = 10.0
#: Why a replica is gone that a rule had asked for.
RULE_REMOVED = "rule_removed"

_log = structlog.get_logger("catalog.replicas")


class LettingGo:
    """Walks removed rules. One per process."""

    def __init__(self, db: Database, channels: ChannelBook, limits: ReplicaLimits) -> None:
        self._db = db
        self._channels = channels
        self._limits = limits

    def run(self, check: Callable[[], None]) -> Counter[str]:
        """Take a turn at every removed rule whose grace is over."""
        counts: Counter[str] = Counter()
        for rule in self._db.run_session(self._due, read_only=True):
            self._walk(rule, counts, check)
        return counts

    def _due(self, session: Session) -> list[ReplicaRule]:
        latest = session.scalar(sa.select(utc_now(-self._limits.grace_seconds)))
        return [
            rule
            for rule in rules_in(session, RuleState.REMOVED)
            if latest is not None and rule.changed_at <= latest
        ]

    def _walk(self, rule: ReplicaRule, counts: Counter[str], check: Callable[[], None]) -> None:
        cursor, kept = rule.cursor, rule.missing_now
        left = self._limits.versions
        while left > 0:
            page = self._db.run_session(
                partial(
                    page_of_versions,
                    bucket_id=rule.bucket_id,
                    channel=rule.channel,
                    after=cursor,
                ),
                read_only=True,
            )
            left -= PAGE_ROWS
            for blob_id in sorted({one.blob_id for one in page if one.replica is not None}):
                check()
                answer = self._let_go(rule.channel, blob_id)
                failpoint("replicas.after_letting_go")
                counts[answer] += 1
                kept += answer == "kept"
            is_end = len(page) < PAGE_ROWS
            after = 0 if is_end else page[-1].version_id
            if not self._db.run_session(
                partial(note_turn, rule=rule, before=cursor, after=after, missing=kept)
            ):
                return
            if is_end:
                if kept == 0:
                    self._db.run_session(partial(_end, rule=rule))
                    counts["rules_ended"] += 1
                return
            cursor = after

    def _let_go(self, channel: str, blob_id: int) -> str:
        found = self._db.run_session(
            partial(_others, blob_id=blob_id, channel=channel), read_only=True
        )
        proven = next((one.id for one in found if self._is_there(one)), None)
        return self._db.run_session(
            partial(_give_up, blob_id=blob_id, channel=channel, proven_id=proven)
        )

    def _is_there(self, location: Location) -> bool:
        try:
            found = self._channels.find(location.channel)
            if found is None:
                return False
            seen = found[0].channel.head(location.key, deadline=Deadline(ASK_SECONDS))
        except (ChannelError, BloxError) as error:
            _log.info("copy_not_proven", location_id=location.id, error=str(error))
            return False
        return seen is not None and (location.etag is None or seen.etag == location.etag)


def _others(session: Session, *, blob_id: int, channel: str) -> list[Location]:
    asked = wanted(session, blob_id)
    return [
        one
        for one in stored_places(session, blob_id, besides=lost_places(session, blob_id))
        if one.channel != channel and asked.allows(one.channel)
    ]


def _give_up(session: Session, *, blob_id: int, channel: str, proven_id: int | None) -> str:
    blob = lock_blobs(session, [blob_id]).get(blob_id)
    if blob is None or blob.state != BlobState.LIVE:
        return "over"
    row = find(session, blob_id, channel)
    asked = wanted(session, blob_id)
    if row is None or row.state == ReplicaState.GONE or channel in asked.replicas:
        return "over"
    ids = sorted(one for one in (row.location_id, proven_id) if one is not None)
    locked = {one: lock_location(session, one) for one in ids}
    location = None if row.location_id is None else locked[row.location_id]
    is_extra = (
        location is not None
        and location.state == LocationState.STORED
        and not asked.allows(channel)
    )
    if is_extra and location is not None:
        proven = None if proven_id is None else locked[proven_id]
        if proven is None or proven.state != LocationState.STORED or proven.blob_id != blob_id:
            return "kept"
        location.state, location.condemned_at = LocationState.CONDEMNED, utc_clock()
    let_go(row, RULE_REMOVED)
    session.flush()
    return "removed" if is_extra else "let_go"


def _end(session: Session, *, rule: ReplicaRule) -> None:
    session.execute(
        sa.update(ReplicaRule)
        .where(
            ReplicaRule.id == rule.id,
            ReplicaRule.state == RuleState.REMOVED,
            ReplicaRule.changed_at == rule.changed_at,
        )
        .values(state=RuleState.ENDED)
        .execution_options(synchronize_session=False)
    )
