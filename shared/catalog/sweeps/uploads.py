"""Open multipart uploads that no living execution needs: aborted, as the rows of their keys tell.

Never by age alone: an intent's key is left alone until the sweep of its table has condemned it,
which it does when the execution that wrote it is over.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from itertools import groupby, islice
from typing import NamedTuple

from shared.catalog.erasing import PLACE_SECONDS
from shared.catalog.sweeps.context import PAGE_ROWS, Pass, SweepContext
from shared.catalog.sweeps.named_keys import intent_keys
from shared.core.clock import utc_now
from shared.core.failpoints import failpoint
from shared.storage.errors import ChannelError

#: Keys as `fresh_key` makes them. Others in the same bucket are not ours to abort.
_OUR_KEY = re.compile(r"(?:[a-z0-9._-]+/)+([0-9a-f]{2})/\1[0-9a-f]{30}\Z")


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
        for channel, of_channel in groupby(sorted(uploads), key=lambda one: one.channel):
            rest = iter(of_channel)
            while page := list(islice(rest, PAGE_ROWS)):
                needed = self._needed(channel, [upload.key for upload in page])
                unneeded.update(one for one in page if one.key not in needed)
        return frozenset(unneeded)

    def _needed(self, channel: str, keys: Sequence[str]) -> set[str]:
        return self._db.run_session(
            lambda session: intent_keys(session, channel, keys), read_only=True
        )

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
        failpoint("sweep.aborted")

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
