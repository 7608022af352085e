"""Asks the channels whether what the locations name is really there: a rotating sample.

Two looks, a turn apart, must agree before anything counts as lost; then it is repaired or restored.
A channel that does not answer is left for the next turn and holds up no other.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import structlog
from sqlalchemy.orm import Session

from shared.catalog.context import Catalogue
from shared.catalog.erasing import ChannelBook
from shared.catalog.models import LocationAudit
from shared.catalog.replicas import look_rows
from shared.catalog.replicas.limits import ReplicaLimits
from shared.catalog.replicas.look_rows import Place
from shared.catalog.replicas.losses import report_loss
from shared.catalog.restores.losses import FoundBy
from shared.core.clock import Deadline
from shared.core.errors import BloxError, StopError
from shared.core.failpoints import failpoint
from shared.outbox.db import Database
from shared.storage.errors import ChecksumMismatch, DeadlinePassed, ObjectMissing
from shared.storage.registry import OpenChannel
from shared.storage.verify import verify

#: Seconds that one question to a channel may take.
ASK_SECONDS = 30.0
#: Locations that wait for a second look, per channel.
SUSPECTS = 1000

_log = structlog.get_logger("catalog.looking")


class Names(ChannelBook, Protocol):
    """Channels that can be listed."""

    def names(self) -> list[str]:
        """Return the names of all channels."""


class Seen(NamedTuple):
    """What a look found: `fault` empty when all is well; `etag` when it had changed, but well."""

    fault: str = ""
    etag: str | None = None


@dataclass(slots=True)
class _Turn:
    """What one turn on one channel has left to spend."""

    deadline: Deadline
    deep_bytes: int


class Looking:
    """Looks at all channels in turn. One per process."""

    def __init__(
        self, db: Database, catalogue: Catalogue, channels: Names, limits: ReplicaLimits
    ) -> None:
        self._db = db
        self._catalogue = catalogue
        self._channels = channels
        self._limits = limits

    def run(self, check: Callable[[], None]) -> Counter[str]:
        """Look at a sample of every channel that answers."""
        counts: Counter[str] = Counter()
        names = self._channels.names()
        self._db.run_session(partial(look_rows.forget, names=names))
        for name in names:
            check()
            self._look_at(name, counts, check)
        return counts

    def _look_at(self, name: str, counts: Counter[str], check: Callable[[], None]) -> None:
        audit = self._db.run_session(partial(look_rows.begin, channel=name))
        found = self._channels.find(name)
        if found is None:
            return
        opened = found[0]
        turn = _Turn(Deadline(self._limits.look_seconds), self._limits.deep_bytes)
        suspects: dict[int, str] = {}
        cursor, checked, lost, error = audit.cursor, 0, 0, None
        is_early = self._db.run_session(
            partial(look_rows.is_early, audit=audit, seconds=self._limits.again_seconds),
            read_only=True,
        )
        waiting = look_rows.suspects_of(audit)
        if is_early and waiting:
            # Two looks must be some time apart. To note a turn now would put the second one off,
            # and for ever where turns are frequent or schedulers many.
            counts["suspects"] += len(waiting)
            return
        try:
            for place in self._places(look_rows.again, audit, name):
                check()
                fault = self._see(opened, place, turn, check, counts, is_deep=True)
                if fault:
                    counts[self._report(place, fault)] += 1
                    lost += 1
            page = self._places(look_rows.page, audit, name)
            for place in page:
                check()
                if turn.deadline.expired():
                    break
                fault = self._see(opened, place, turn, check, counts)
                if fault and len(suspects) < SUSPECTS:
                    suspects[place.location_id] = fault
                cursor, checked = place.location_id, checked + 1
            else:
                if len(page) < self._limits.sample:
                    cursor = 0
        except _Away as away:
            error = str(away)
            counts["channels_away"] += 1
            # What waits for its second look goes on waiting.
            suspects |= look_rows.suspects_of(audit)
        counts["checked"] += checked
        counts["suspects"] += len(suspects)
        self._db.run_session(
            partial(
                look_rows.end,
                audit=audit,
                cursor=cursor,
                suspects=suspects,
                checked=checked,
                lost=lost,
                error=error,
            )
        )

    def _places(
        self, read: Callable[..., list[Place]], audit: LocationAudit, name: str
    ) -> Sequence[Place]:
        return self._db.run_session(
            partial(read, audit=audit, channel=name, limit=self._limits.sample), read_only=True
        )

    def _see(
        self,
        opened: OpenChannel,
        place: Place,
        turn: _Turn,
        check: Callable[[], None],
        counts: Counter[str],
        *,
        is_deep: bool = False,
    ) -> str:
        """Look at one location; returns what is wrong with it."""
        is_deep = is_deep or random.random() < self._limits.deep_ratio
        try:
            seen = _look(opened, place, turn, check, is_deep=is_deep)
        except StopError:
            raise
        except BloxError as error:
            raise _Away(str(error)) from error
        if seen.etag is not None:
            counts["renamed"] += 1
            self._db.run_session(partial(look_rows.keep_etag, place=place, etag=seen.etag))
        return seen.fault

    def _report(self, place: Place, fault: str) -> str:
        def report(session: Session) -> str:
            return report_loss(
                session,
                self._catalogue,
                place.location_id,
                found_by=FoundBy.AUDIT,
                detail=fault,
            )

        answer = self._db.run_session(report)
        failpoint("replicas.after_report")
        _log.warning("loss_found", location_id=place.location_id, fault=fault, answer=answer)
        return answer


class _Away(Exception):
    """The channel does not answer as it should: nothing more is asked of it in this turn."""


def _look(
    opened: OpenChannel, place: Place, turn: _Turn, check: Callable[[], None], *, is_deep: bool
) -> Seen:
    """Compare an object with its location. What cannot be told cheaply is read, within bounds."""
    deadline = turn.deadline.within(ASK_SECONDS)
    found = opened.channel.head(place.key, deadline=deadline)
    if found is None:
        return Seen("missing")
    if found.size != place.size_bytes:
        return Seen("size")
    if found.sha256 is not None and found.sha256 != place.sha256:
        return Seen("content")
    is_same = found.sha256 is not None or found.etag == place.etag
    if (is_same and not is_deep) or place.size_bytes > turn.deep_bytes:
        return Seen()
    turn.deep_bytes -= place.size_bytes
    try:
        proven = verify(
            opened,
            place.key,
            size=place.size_bytes,
            sha256=place.sha256,
            check=check,
            deadline=turn.deadline,
        )
    except ObjectMissing:
        return Seen("missing")
    except ChecksumMismatch:
        return Seen("content")
    except DeadlinePassed:
        return Seen()
    return Seen(etag=None if proven.etag == place.etag else proven.etag)
