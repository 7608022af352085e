"""Compensation: the scans and the filler, run regularly by the scheduler or by `outbox.run`.

Any number of processes may run it at once; each turn is bounded in time, an outage only delays it.
"""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass

import redis
import structlog

from shared.core.clock import monotonic
from shared.core.errors import BloxError
from shared.outbox.context import OutboxContext
from shared.outbox.db import BusyError
from shared.outbox.ends import Ends, EnqueuePort
from shared.outbox.filler import Filler
from shared.outbox.gone import Gone
from shared.outbox.housekeeping import Housekeeping
from shared.outbox.leases import Leases
from shared.outbox.nodes import LiveNodes
from shared.outbox.parked_scan import ParkedScan
from shared.outbox.scans import Scans
from shared.outbox.walk import uptime_seconds
from shared.outbox.window import Places

#: Seconds between two rounds of housekeeping.
HOUSEKEEPING_SECONDS = 60.0
#: Turns are spread by this share, so that several schedulers do not scan in step.
_JITTER = 0.1

_log = structlog.get_logger("outbox.scans")


@dataclass(slots=True)
class Compensated:
    """What one turn brought back or moved on, in rows."""

    due: int = 0
    dispatch_expired: int = 0
    gone: int = 0
    parked: int = 0
    recovered: int = 0
    ended: int = 0
    filled: int = 0

    @property
    def made_pending(self) -> int:
        """Return the rows that wait for the filler now."""
        return self.due + self.dispatch_expired + self.gone + self.parked


class Compensator:
    """All scans of one process. `run` in a thread of its own, or `run_once` by hand."""

    def __init__(self, context: OutboxContext, enqueuer: EnqueuePort) -> None:
        self._context = context
        self._line = context.db.line()
        self._nodes = LiveNodes(context)
        self._places = Places(context)
        self._scans = Scans(context, self._line)
        self._leases = Leases(context, Ends(context, enqueuer), self._line)
        self._gone = Gone(context, self._line)
        self._parked = ParkedScan(context, self._line)
        self._housekeeping = Housekeeping(context, self._line)
        self._filler = Filler(context)
        #: Local monotonic time from which leases are scanned again after an outage.
        self._leases_from = float("-inf")
        self._was_away = False
        self._tidied_at = float("-inf")
        self._filling: threading.Thread | None = None
        self._last_scan = monotonic()

    @property
    def last_ok(self) -> float:
        """Return the local monotonic time at which scans and filler had last both succeeded."""
        return min(self._last_scan, self._filler.last_ok)

    def run_once(self) -> Compensated:
        """Run every scan once, then fill the windows; returns what was done.

        Raises UnavailableError without the database. Without Redis there is nothing to compare with
        and nothing to fill.
        """
        done = self._scan()
        try:
            done.filled = self._filler.run_once()
        except redis.RedisError as error:
            _log.info("fill_failed", error=repr(error))
        return done

    @property
    def filler_turned(self) -> float:
        """Return the local monotonic time at which `fill` last ended a round, well or not."""
        return self._filler.turned

    def begin(self) -> None:
        """Get ready for regular scans: leases get one more lease if the database is young."""
        self._leases_from = monotonic() + self._guess_outage()

    def scan_once(self) -> Compensated:
        """Run every scan once, and once a minute the housekeeping; the filler is rung for its work.

        One half of `run`, for those who keep the time themselves: `begin`, then this every
        `settings.scan_seconds`, `fill` in a thread of its own. Raises UnavailableError and
        redis.RedisError as they come.
        """
        try:
            done = self._scan()
            self._tidy()
        except BusyError:
            # It answers, and so it did to those who renew their leases.
            raise
        except (BloxError, redis.RedisError):
            self._was_away = True
            raise
        self._last_scan = monotonic()
        if done.made_pending:
            self._ring()
        return done

    def fill(self, stop: threading.Event) -> None:
        """Fill the windows on the bell, until `stop` is set: the other half of `run`."""
        self._filler.run(stop)

    def run(self, stop: threading.Event) -> None:
        """Scan every `settings.scan_seconds` and fill on the bell, until `stop` is set."""
        filling = threading.Thread(
            target=self.fill, args=(stop,), name="outbox-filler", daemon=True
        )
        filling.start()
        self.begin()
        try:
            while not stop.is_set():
                self._turn()
                wait = self._context.settings.scan_seconds
                stop.wait(wait * random.uniform(1, 1 + _JITTER))
        finally:
            filling.join()
            self._line.close()

    def close(self) -> None:
        """Give connections and leases back after `run_once`; `run` does it by itself."""
        self._filler.close()
        self._line.close()

    def _turn(self) -> None:
        try:
            self.scan_once()
        except (BloxError, redis.RedisError) as error:
            _log.warning("scan_failed", error=repr(error))
        except Exception:
            _log.exception("scan_broke")

    def _scan(self) -> Compensated:
        done = Compensated()
        places = self._places.get(self._nodes.get(self._line), self._line)
        if self._was_away:
            # Its owners could not renew while the database was away: they get one lease's time.
            self._leases_from = monotonic() + self._context.settings.lease_seconds
            self._was_away = False
        done.due = self._scans.due(places)
        done.dispatch_expired = self._scans.dispatch_expired()
        done.gone = self._gone.run_once()
        done.parked = self._parked.run_once()
        if monotonic() >= self._leases_from:
            done.recovered, done.ended = self._leases.run_once()
        return done

    def _tidy(self) -> None:
        if monotonic() - self._tidied_at >= HOUSEKEEPING_SECONDS:
            self._housekeeping.run_once(self._places.get(self._nodes.get(self._line), self._line))
            self._tidied_at = monotonic()

    def _ring(self) -> None:
        try:
            self._context.scripts.ring_filler()
        except redis.RedisError as error:
            _log.info("filler_not_rung", error=str(error))

    def _guess_outage(self) -> float:
        """Return how long leases are left alone at the start: the database may have been away."""
        try:
            up = uptime_seconds(self._context.db, self._line)
        except BloxError:
            self._was_away = True
            return 0.0
        return max(0.0, self._context.settings.lease_seconds - up)
