"""The channels of this process: the table's content, kept for a while and compared by its revision.

A change is seen within a quarter of a second; a database that does not answer takes no channel
away at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.channels import StoredChannel, load_channels, read_revision
from shared.catalog.secret_box import SecretBox
from shared.core.clock import monotonic
from shared.core.errors import BloxError, UnavailableError
from shared.storage.channel import Channel
from shared.storage.registry import Channels, OpenChannel

#: Seconds for which the revision is believed.
REVISION_SECONDS = 0.25
#: Seconds after which the table is read again although its revision is the same.
RELOAD_SECONDS = 30.0
#: Seconds after a failed load before the next one.
COOL_DOWN_SECONDS = 2.0
#: Seconds that a caller waits for another's load.
LOAD_WAIT_SECONDS = 5.0
#: Seconds for which a table that cannot be read again is still used, at the same revision.
STALE_SECONDS = 300.0

_FAILURES = (sa.exc.SQLAlchemyError, BloxError, OSError)


@dataclass(frozen=True, slots=True)
class _Loaded:
    revision: int
    channels: Mapping[str, StoredChannel]
    at: float


def _ignore(_event: str) -> None:
    """Tell nobody."""


class ChannelCatalogue:
    """Finds channels by name. Thread-safe; make one per process.

    `on_event` is called with hit, load, stale or failure, whenever one of them happens.
    """

    def __init__(
        self,
        engine: sa.Engine,
        secrets: SecretBox,
        *,
        channels: Channels | None = None,
        clock: Callable[[], float] = monotonic,
        on_event: Callable[[str], None] = _ignore,
    ) -> None:
        self._on_event = on_event
        # Reads only: on SQLite they run beside the writer.
        self._engine = engine.execution_options(read_only=True)
        self._secrets = secrets
        self._channels = channels or Channels()
        self._clock = clock
        self._lock = threading.Lock()
        self._loaded: _Loaded | None = None
        self._revision_at = -1e9
        self._failed_at = -1e9
        #: The newest revision that the database has told.
        self._seen = -1

    def find(self, name: str) -> tuple[OpenChannel, bool] | None:
        """Return a channel and whether it may take new bytes; None when there is none.

        Raises UnavailableError when the table cannot be read.
        """
        stored = self._current().get(name)
        return None if stored is None else (self._channels.open(stored.spec), stored.is_enabled)

    def open(self, name: str) -> OpenChannel:
        """Return a channel with its breaker and limits, also one that takes no new bytes.

        Raises UnavailableError when there is none, or the table cannot be read.
        """
        found = self.find(name)
        if found is None:
            raise UnavailableError("there is no such channel", channel=name)
        return found[0]

    def get(self, name: str) -> Channel:
        """Return a channel; see `open`."""
        return self.open(name).channel

    def is_enabled(self, name: str) -> bool:
        """Tell whether a channel is there and may take new bytes."""
        stored = self._current().get(name)
        return stored is not None and stored.is_enabled

    def names(self) -> list[str]:
        """Return the names of all channels."""
        return sorted(self._current())

    def _current(self) -> Mapping[str, StoredChannel]:
        loaded = self._loaded
        if loaded is not None and self._is_fresh(loaded):
            self._on_event("hit")
            return loaded.channels
        # One load at a time, however many threads ask.
        if not self._lock.acquire(timeout=LOAD_WAIT_SECONDS):
            return self._stale("another thread's load does not end", None)
        try:
            return self._renew()
        finally:
            self._lock.release()

    def _is_fresh(self, loaded: _Loaded) -> bool:
        now = self._clock()
        return now - self._revision_at < REVISION_SECONDS and now - loaded.at < RELOAD_SECONDS

    def _renew(self) -> Mapping[str, StoredChannel]:
        loaded, now = self._loaded, self._clock()
        if loaded is not None and self._is_fresh(loaded):
            return loaded.channels
        if now - self._failed_at < COOL_DOWN_SECONDS:
            return self._stale("the last load has just failed", None)
        revision = self._ask_revision(loaded)
        if loaded is not None and revision == loaded.revision and now - loaded.at < RELOAD_SECONDS:
            return loaded.channels
        try:
            with Session(self._engine) as session:
                # The revision first: a change in between is then seen as one more change.
                revision = read_revision(session)
                channels = load_channels(session, self._secrets)
        except _FAILURES as error:
            self._on_event("failure")
            self._failed_at = self._clock()
            return self._stale("the channels cannot be read", error)
        self._on_event("load")
        self._loaded = _Loaded(revision, channels, self._clock())
        self._revision_at = self._loaded.at
        self._seen = revision
        return channels

    def _ask_revision(self, loaded: _Loaded | None) -> int:
        if loaded is None:
            return -1
        try:
            with Session(self._engine) as session:
                revision = read_revision(session)
        except _FAILURES:
            # The local one is kept, and asked again after as long as ever.
            revision = self._seen
        self._seen = revision
        self._revision_at = self._clock()
        return revision

    def _stale(self, reason: str, error: Exception | None) -> Mapping[str, StoredChannel]:
        loaded = self._loaded
        # A copy that is known to be outdated is not used: the change may have taken a channel away.
        is_usable = loaded is not None and loaded.revision == self._seen
        if loaded is None or not is_usable or self._clock() - loaded.at > STALE_SECONDS:
            raise UnavailableError(reason) from error
        self._on_event("stale")
        return loaded.channels
