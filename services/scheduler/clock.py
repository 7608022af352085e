"""The local clock: calls each tick at its interval, one call of a tick at a time.

APScheduler keeps the time, in memory; what a tick does is decided in the database. Whether the
ticks turn is for liveness, whether they succeed is shown and measured.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Sequence
from functools import partial

import structlog
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from shared.core.clock import Deadline, monotonic
from shared.core.errors import BloxError
from shared.runtime.health import Health, Pulse
from shared.runtime.metrics import Metrics

#: Share of its interval by which a tick is spread.
_JITTER = 0.1

_log = structlog.get_logger("scheduler")


class Tick:
    """Something that is done again and again.

    `act` gets an event that is set when the process stops, and must heed it. A call that is not
    over after `limit_seconds` counts as hung: the process is not live any more.
    """

    def __init__(
        self,
        name: str,
        act: Callable[[threading.Event], object],
        *,
        every_seconds: float,
        limit_seconds: float,
    ) -> None:
        self.name = name
        self.every_seconds = every_seconds
        self.limit_seconds = limit_seconds
        self.succeeded = Pulse(started=False)
        self.turned = Pulse()
        self.failures = 0
        self.last_seconds = 0.0
        self.last_success: dt.datetime | None = None
        self._act = act
        self._running = threading.Event()

    @property
    def is_running(self) -> bool:
        """Tell whether a call is going on."""
        return self._running.is_set()

    def success_timestamp(self) -> float:
        """Return when it last succeeded, in seconds since 1970; 0 for never."""
        return self.last_success.timestamp() if self.last_success is not None else 0.0

    def run(self, stopping: threading.Event) -> bool:
        """Make one call; returns whether it succeeded. Errors are logged and counted."""
        self._running.set()
        began = monotonic()
        try:
            if stopping.is_set():
                return False
            self._act(stopping)
        except BloxError as error:
            self._fail(str(error))
            return False
        except Exception as error:
            _log.exception("tick_failed_unexpectedly", tick=self.name)
            self._fail(repr(error))
            return False
        finally:
            self.last_seconds = monotonic() - began
            self.turned.beat()
            self._running.clear()
        if self.failures:
            _log.info("tick_works_again", tick=self.name, failures=self.failures)
        self.failures = 0
        self.succeeded.beat()
        self.last_success = dt.datetime.now(dt.UTC)
        return True

    def _fail(self, error: str) -> None:
        self.failures += 1
        # The first of a row is news; the rest is in the metrics.
        if self.failures == 1:
            _log.warning("tick_failed", tick=self.name, error=error)


class Clock:
    """Runs ticks until it is closed."""

    def __init__(self, ticks: Sequence[Tick], stopping: threading.Event) -> None:
        self._ticks = list(ticks)
        self._stopping = stopping
        self._scheduler = BackgroundScheduler(
            executors={"default": ThreadPoolExecutor(max_workers=max(1, len(self._ticks)))},
            # Its own default drops a run that is a second late.
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
            timezone=dt.UTC,
        )

    def start(self) -> None:
        """Call every tick now, and then at its interval."""
        for tick in self._ticks:
            self._scheduler.add_job(
                tick.run,
                "interval",
                seconds=tick.every_seconds,
                # Several schedulers need not work in step.
                jitter=tick.every_seconds * _JITTER,
                args=(self._stopping,),
                id=tick.name,
                next_run_time=dt.datetime.now(dt.UTC),
            )
        self._scheduler.start()

    def close(self, seconds: float) -> None:
        """Start no call any more and wait for those that run; RuntimeError when one goes on."""
        self._stopping.set()
        # Its own waiting has no time limit.
        self._scheduler.shutdown(wait=False)
        deadline = Deadline(seconds)
        while running := [tick.name for tick in self._ticks if tick.is_running]:
            if deadline.expired():
                raise RuntimeError(f"still running: {', '.join(running)}")
            threading.Event().wait(0.02)


def watch(ticks: Sequence[Tick], health: Health, metrics: Metrics) -> None:
    """Put ticks into liveness and into the metrics."""
    success = metrics.gauge(
        "job_last_success_timestamp_seconds", "When a job last succeeded; 0 for never", "job"
    )
    duration = metrics.gauge("job_duration_seconds", "How long its last call took", "job")
    failures = metrics.gauge("job_consecutive_failures", "Calls failed in a row", "job")
    for tick in ticks:
        limit = tick.every_seconds + tick.limit_seconds
        health.add_live(tick.name, tick.turned.within(limit, "last turn"))
        health.add_detail(f"{tick.name}_last_success", partial(getattr, tick, "last_success"))
        success.labels(tick.name).set_function(tick.success_timestamp)
        duration.labels(tick.name).set_function(partial(getattr, tick, "last_seconds"))
        failures.labels(tick.name).set_function(partial(getattr, tick, "failures"))
