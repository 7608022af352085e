"""Open multipart uploads that no living execution needs: aborted, as their locations tell."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.erasing import PLACE_SECONDS
from shared.catalog.models import Location, LocationState
from shared.catalog.sweeps.context import PAGE_ROWS, Pass, SweepContext
from shared.core.clock import utc_now
from shared.storage.errors import ChannelError

#: Keys as `fresh_key` makes them. Others in the same bucket are not ours to abort.
_OUR_KEY = re.compile(r"[a-z0-9_-]+/[0-9a-f]{2}/[0-9a-f]{32}\Z")


class Upload(NamedTuple):
    """One open upload on one channel."""

    channel: str
    key: str
    upload_id: str


class UploadSweep:
    """Keeps in memory which uploads the last pass found unneeded: two passes must agree."""

    name = "uploads"

    def __init__(self, context: SweepContext) -> None:
        self._db = context.db
        self._channels = context.channels
        self._limits = context.limits
        self._seen: frozenset[Upload] = frozenset()

    def run(self, turn: Pass) -> None:
        """Make one pass; an error of any channel while listing ends it, nothing is aborted then."""
        unneeded = self._unneeded(self._list(turn))
        agreed, self._seen = sorted(unneeded & self._seen), unneeded
        turn.counts["unneeded"] = len(unneeded)
        for upload in agreed:
            # Asked again: listing took a while.
            if upload in self._unneeded([upload]):
                self._abort(upload, turn)
        self._sweep_temporary(turn)

    def _list(self, turn: Pass) -> list[Upload]:
        latest = utc_now() - dt.timedelta(seconds=self._limits.min_age_seconds)
        uploads = []
        for name in self._channels.names():
            found = self._channels.find(name)
            if found is None:
                continue
            for one in found[0].channel.list_uploads(deadline=turn.deadline):
                turn.check()
                if one.started_at <= latest and _OUR_KEY.match(one.key):
                    uploads.append(Upload(name, one.key, one.upload_id))
        return uploads

    def _unneeded(self, uploads: Sequence[Upload]) -> frozenset[Upload]:
        unneeded: set[Upload] = set()
        for start in range(0, len(uploads), PAGE_ROWS):
            page = uploads[start : start + PAGE_ROWS]
            needed = self._needed([upload.key for upload in page])
            unneeded.update(one for one in page if (one.channel, one.key) not in needed)
        return frozenset(unneeded)

    def _needed(self, keys: Sequence[str]) -> set[tuple[str, str]]:
        """Return the (channel, key) pairs that stand as intents: a living execution may go on."""

        def read(session: Session) -> set[tuple[str, str]]:
            rows = session.execute(
                sa.select(Location.channel, Location.key).where(
                    Location.channel.in_(self._channels.names()),
                    Location.key.in_(keys),
                    Location.state == LocationState.INTENT,
                )
            )
            return {(row.channel, row.key) for row in rows}

        return self._db.run_session(read, read_only=True)

    def _abort(self, upload: Upload, turn: Pass) -> None:
        found = self._channels.find(upload.channel)
        if found is None or not turn.may_remove("aborted", **upload._asdict()):
            return
        try:
            found[0].channel.abort_upload(
                upload.key, upload.upload_id, deadline=turn.deadline.within(PLACE_SECONDS)
            )
        except ChannelError:
            turn.counts["aborts_failed"] += 1

    def _sweep_temporary(self, turn: Pass) -> None:
        """Remove what killed writers left in the temporary areas of channels that have one."""
        if self._limits.dry_run:
            return
        for name in self._channels.names():
            found = self._channels.find(name)
            if found is None:
                continue
            try:
                turn.counts["partial"] += found[0].channel.sweep_partial(
                    minimum_age_seconds=self._limits.staging_age_seconds, deadline=turn.deadline
                )
            except ChannelError:
                turn.counts["partial_failed"] += 1
