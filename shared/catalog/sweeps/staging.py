"""Files in staging that no row names: to the trash, and after a week away for good."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import OriginSegment, UploadPart, Version, VersionState, utc_clock
from shared.catalog.sweeps.context import PAGE_ROWS, Pass, SweepContext
from shared.catalog.sweeps.joins import joins_under_way
from shared.core.clock import utc_now

#: Unnamed files that are remembered between two passes.
_MOST_CANDIDATES = 100_000


class StagingSweep:
    """Keeps in memory what the last pass found unnamed: only what two passes find is touched."""

    name = "staging"

    def __init__(self, context: SweepContext) -> None:
        self._context = context
        self._seen: frozenset[str] = frozenset()

    def run(self, turn: Pass) -> None:
        """Make one pass. Both listings end without an error before anything is moved."""
        limits, staging = self._context.limits, self._context.staging
        old = (
            entry.key
            for entry in staging.old(
                minimum_age_seconds=limits.staging_age_seconds, deadline=turn.deadline
            )
        )
        unnamed = frozenset(islice(self._unnamed(old, turn), _MOST_CANDIDATES))
        trashed = {
            entry.key: (utc_now() - entry.modified_at).total_seconds()
            for entry in staging.trashed(minimum_age_seconds=0.0, deadline=turn.deadline)
        }
        agreed, self._seen = sorted(unnamed & self._seen), unnamed
        turn.counts["unnamed"] = len(unnamed)
        for key in agreed:
            self._trash(key, turn)
        self._empty_trash(trashed, turn)
        if not limits.dry_run:
            turn.counts["partial"] += staging.sweep_partial(
                minimum_age_seconds=limits.staging_age_seconds
            )

    def _trash(self, key: str, turn: Pass) -> None:
        if turn.is_full or not self._context.db.run_session(lambda session: _release(session, key)):
            return
        if turn.may_remove("trashed", key=key):
            self._context.staging.trash(key)

    def _empty_trash(self, trashed: dict[str, float], turn: Pass) -> None:
        """Bring named files back; remove what has lain there for long enough."""
        unnamed = set(self._unnamed(trashed, turn))
        for key, age_seconds in trashed.items():
            if key not in unnamed:
                turn.counts["restored"] += 1
                if not self._context.limits.dry_run:
                    self._context.staging.restore(key)
            elif age_seconds >= self._context.limits.trash_seconds:
                self._purge(key, turn)

    def _purge(self, key: str, turn: Pass) -> None:
        # Asked again: a row may name it by now.
        if turn.is_full or self._named([key]):
            return
        if turn.may_remove("purged", key=key):
            self._context.staging.purge(key, deadline=turn.deadline)

    def _unnamed(self, keys: Iterable[str], turn: Pass) -> Iterator[str]:
        keys = iter(keys)
        while page := list(islice(keys, PAGE_ROWS)):
            turn.check()
            named = self._named(page)
            yield from (key for key in page if key not in named)

    def _named(self, keys: Sequence[str]) -> set[str]:
        return self._context.db.run_session(lambda session: named(session, keys), read_only=True)


def named(session: Session, keys: Sequence[str]) -> set[str]:
    """Return those of the keys that a version, an upload in parts or an open pull needs.

    A quarantine that is over needs nothing.
    """
    # Joins first: the commit that ends one names its file in a version.
    joined = joins_under_way(session, keys)
    # Parts first: the only part of an upload becomes a version's own file, and never goes back.
    parts = set(
        session.scalars(sa.select(UploadPart.staging_key).where(UploadPart.staging_key.in_(keys)))
    )
    segments = sa.select(OriginSegment.staging_key).where(OriginSegment.staging_key.in_(keys))
    parts |= set(session.scalars(segments))
    found = session.scalars(
        sa.select(Version.staging_key).where(
            Version.staging_key.in_(keys),
            sa.or_(
                Version.state != VersionState.BLOCKED,
                Version.staging_until.is_(None),
                Version.staging_until > utc_clock(),
            ),
        )
    )
    return {key for key in found if key is not None} | parts | joined


def _release(session: Session, key: str) -> bool:
    """Let versions whose quarantine is over name the file no more; tells whether nobody does."""
    session.execute(
        sa.update(Version)
        .where(
            Version.staging_key == key,
            Version.state == VersionState.BLOCKED,
            Version.staging_until <= utc_clock(),
        )
        .values(staging_key=None)
        .execution_options(synchronize_session=False)
    )
    return not named(session, [key])
