"""What the outbox tells about itself. Code emits these once; logs and metrics subscribe.

Signals are counted, not sent one per task, where tasks are grouped: the hot path stays cheap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog

_log = structlog.get_logger("outbox")


@dataclass(frozen=True, slots=True)
class Claimed:
    """Executions begun; `waits_seconds` has each one's lag behind the later of created and due."""

    queue: str
    waits_seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """Executions that ended: completed, retry, snooze, failed, cancelled, given_back.

    `final` tells whether the tasks ended with them.
    """

    queue: str
    kind: str
    outcome: str
    final: bool
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class EndedWithoutAnswer:
    """Tasks that ended without a handler's answer: cancelled, superseded, or crashed too often."""

    queue: str
    kind: str
    outcome: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class DispatchFailed:
    """Messages that Redis refused (`unknown` False) or did not confirm (`unknown` True)."""

    count: int
    unknown: bool


@dataclass(frozen=True, slots=True)
class Redelivered:
    """Rows that a scan brought back: due, dispatch_expired, message_gone."""

    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class LeasesRecovered:
    """Running rows whose lease had expired, put back (`failed` of them for good)."""

    count: int
    failed: int


@dataclass(frozen=True, slots=True)
class LeaseLossSeen:
    """Executions of this process that no longer own their task."""

    count: int


@dataclass(frozen=True, slots=True)
class StaleMessages:
    """Messages that named a dispatch which is over; they were dropped."""

    count: int


@dataclass(frozen=True, slots=True)
class WindowMeasured:
    """How full the window of one queue is."""

    queue: str
    region: str
    fullness: int
    size: int


Signal = (
    Claimed
    | Ended
    | EndedWithoutAnswer
    | DispatchFailed
    | Redelivered
    | LeasesRecovered
    | LeaseLossSeen
    | StaleMessages
    | WindowMeasured
)
Subscriber = Callable[[Signal], None]


class Signals:
    """The subscribers of one outbox. A subscriber that fails is logged and does no harm."""

    def __init__(self) -> None:
        self._subscribers: list[Subscriber] = []

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call `subscriber` with every signal from now on, in the emitting thread."""
        self._subscribers.append(subscriber)

    def emit(self, signal: Signal) -> None:
        """Hand a signal to all subscribers."""
        for subscriber in self._subscribers:
            try:
                subscriber(signal)
            except Exception:
                _log.exception("signal_subscriber_failed", signal=type(signal).__name__)
