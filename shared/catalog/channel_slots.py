"""A channel as something that only so many executions use at a time, and that can be broken.

Whoever uses a channel does so inside of `ChannelSlots.hold`, or of `reading` where it only gives;
a channel that is full, broken or silent then parks the task, without a waiting thread and without
an attempt.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from shared.core.errors import ResourceBusy, UnavailableError
from shared.core.shares import LOOK_SECONDS, Shares
from shared.storage.errors import BreakerOpen

if TYPE_CHECKING:
    from shared.catalog.erasing import ChannelBook
    from shared.outbox.execution import Execution
    from shared.outbox.ports import Places
    from shared.outbox.resources import Resources
    from shared.storage.registry import OpenChannel

_PREFIX = "channel:"
#: Tasks woken by each success on a channel that was broken: they spread by themselves.
_WOKEN_BY_SUCCESS = 2
#: Spread of the moments at which parked tasks ask again, in seconds: not all of them at once.
_SPREAD_SECONDS = (0.1, 1.0)


def resource_of(channel: str) -> str:
    """Return the resource on which tasks are parked that wait for a channel."""
    return f"{_PREFIX}{channel}"


class ChannelLimits:
    """How many executions may use a resource at a time, from the channels' `max_running`."""

    def __init__(self, channels: ChannelBook) -> None:
        self._channels = channels

    def limit(self, name: str) -> int:
        """Return a channel's limit; 0 where there is none. Raises UnavailableError."""
        if not name.startswith(_PREFIX):
            return 0
        # Who waits for a channel that is gone finds out by itself.
        found = self._channels.find(name.removeprefix(_PREFIX))
        return 0 if found is None else found[0].max_running


class _Names(Protocol):
    """What `slots_in_use` needs of the channels of a process."""

    def names(self) -> list[str]:
        """Return all names."""

    def find(self, name: str) -> tuple[OpenChannel, bool] | None:
        """Return a channel and whether it takes new bytes."""


def slots_in_use(channels: _Names, places: Places | None) -> dict[str, int]:
    """Return how many places are held or reserved, by resource, of the channels with a limit.

    Empty without Redis. Raises UnavailableError when the channels cannot be read.
    """
    limits = ChannelLimits(channels)
    limited = [name for name in map(resource_of, channels.names()) if limits.limit(name)]
    if places is None:
        return {}
    try:
        counts = {name: places.in_use(name) for name in limited}
    except UnavailableError:
        return {}
    return {name: count for name, count in counts.items() if count is not None}


class ChannelSlots:
    """The seam for handlers; one per process. Without `resources` no channel is ever full.

    `shares` keeps threads of the process free of channels that do not answer.
    """

    def __init__(self, resources: Resources | None = None, shares: Shares | None = None) -> None:
        self._resources = resources
        self._shares = shares or Shares()
        #: Channels on whose breaker this process has parked tasks.
        self._broken: set[str] = set()

    @contextmanager
    def hold(
        self,
        execution: Execution,
        found: OpenChannel | tuple[OpenChannel, bool] | None,
        *,
        even_broken: bool = False,
    ) -> Iterator[None]:
        """Use a channel in the block, the commit included; held before the intent is written.

        Takes what `ChannelBook.find` says as well: of a channel that is gone there is none to hold.
        `even_broken` is for a block that asks the breaker itself and answers as it likes.

        Raises ResourceBusy when it is full, its breaker is open (also one that opens in the block),
        it does not answer and has its share of the threads (also later, from `execution.check`), or
        Redis does not answer: leave it to the outbox, which parks the task, or try another
        channel. A place that is lost stops the execution. A channel without a limit costs nothing.
        """
        opened = found[0] if isinstance(found, tuple) else found
        if opened is None:
            yield
            return
        if not (even_broken or opened.ready()):
            raise self._broken_error(opened.name, opened.retry_after_seconds())
        with self._share(execution, opened.name, opened.silent_seconds):
            try:
                if self._resources is None or opened.max_running <= 0:
                    yield
                else:
                    with self._resources.hold(
                        execution,
                        resource_of(opened.name),
                        limit=opened.max_running,
                        is_well=opened.ready,
                    ):
                        yield
            except BreakerOpen as error:
                name = str(error.facts.get("channel") or opened.name)
                raise self._broken_error(name, error.retry_after_seconds) from error
        self._used(opened.name, is_well=opened.ready())

    @contextmanager
    def reading(self, execution: Execution, opened: OpenChannel) -> Iterator[None]:
        """Only read from a channel in the block: it takes no place, but a share of the threads.

        Raises ResourceBusy when it does not answer and has its share, also later from
        `execution.check`: another channel that has the bytes may do, else the task is parked.
        """
        breaker = opened.read_breaker
        with self._share(execution, opened.name, breaker.silent_seconds):
            yield
        self._used(opened.name, is_well=breaker.ready())

    def broken(self, channel: str, seconds: float) -> float:
        """Note that tasks are parked on a channel's breaker; returns how long they wait at most."""
        self._broken.add(channel)
        return seconds + random.uniform(*_SPREAD_SECONDS)

    @contextmanager
    def _share(
        self, execution: Execution, channel: str, silent_seconds: Callable[[], float]
    ) -> Iterator[None]:
        def refusal() -> ResourceBusy:
            return ResourceBusy(
                f"channel {channel} does not answer those who use it now",
                resource=resource_of(channel),
                after_seconds=self.broken(channel, LOOK_SECONDS),
            )

        with (
            self._shares.enter(channel, silent_seconds, refusal=refusal, owner=execution) as share,
            execution.guarded(share.check),
        ):
            yield

    def _used(self, channel: str, *, is_well: bool) -> None:
        """Let others follow who are parked on a channel that has just been used."""
        if not is_well:
            self._broken.add(channel)
        elif channel in self._broken:
            self._wake(channel)

    def _broken_error(self, channel: str, seconds: float) -> ResourceBusy:
        return ResourceBusy(
            f"channel {channel} is left alone for a while",
            resource=resource_of(channel),
            after_seconds=self.broken(channel, seconds),
        )

    def _wake(self, channel: str) -> None:
        """Let those come that were parked while it was broken, some more with each success."""
        woken = 0
        if self._resources is not None:
            woken = self._resources.wake(resource_of(channel), _WOKEN_BY_SUCCESS)
        if not woken:
            self._broken.discard(channel)
