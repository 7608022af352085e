"""The filler: pending rows into Redis, as many as each window takes, fair over the tenants.

One filler per queue at a time, by a lease in Redis (two at once would only overfill). It wakes when
a fetch leaves a window low or an enqueue leaves a row pending, and looks by itself as a net.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import redis
import structlog

from shared.core.clock import Deadline, monotonic
from shared.core.errors import BloxError
from shared.core.ids import new_id
from shared.outbox.backlog import Backlog
from shared.outbox.context import OutboxContext
from shared.outbox.credits import Dealer
from shared.outbox.nodes import LiveNodes
from shared.outbox.pages import Pages
from shared.outbox.signals import WindowMeasured
from shared.outbox.window import Fullness, Place, Places, window_size

#: A process fills a queue until this long after it last said so.
LEASE_MILLIS = 5000
#: One round stays with one queue for this long at most; the others wait meanwhile.
ROUND_SECONDS = 0.2
#: Rounds begin at least this far apart, so that a stream of bells is answered in batches.
GATHER_SECONDS = 0.01
#: Pages are marked this long after their push: the rows of a busy queue are taken by then.
MARK_SECONDS = 2.0
#: Processes are looked up again after a bell when the last look is older than this.
RUNG_NODES_SECONDS = 0.1
#: The low-water mark outlives the filler that set it by this.
LOW_MILLIS = 10_000
#: Seconds between tries while Redis or the database is away.
_AWAY_SECONDS = 0.5

#: KEYS one queue's lease; ARGV token, milliseconds. Answers the token that holds it now, and
#: whether it was free before. A lease that ends later than any that is given here, or never, is
#: nobody's: a restored copy lost its time to live, or the server's clock was set back.
_HOLD = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  local left = redis.call('PTTL', KEYS[1])
  if left >= 0 and left <= tonumber(ARGV[2]) then return {holder, 0} end
  holder = false
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {ARGV[1], holder and 0 or 1}
"""
_RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""

_log = structlog.get_logger("outbox.filler")


class _Window:
    """What the filler remembers of one place while it holds its lease."""

    def __init__(self, context: OutboxContext, place: Place) -> None:
        self.place = place
        self.fullness = Fullness(context, place)
        self.backlog = Backlog(context, place)
        #: Places that credits may be dealt for; 0 while rows wait.
        self.room = 0
        self.low: tuple[int, float] = (0, 0.0)
        self.is_cut_short = False


class Filler:
    """Fills all windows. Everything but `run` is for one thread."""

    def __init__(self, context: OutboxContext) -> None:
        self._context = context
        self._line = context.db.line()
        self._nodes = LiveNodes(context)
        self._places = Places(context)
        self._dealer = Dealer(context)
        self._pages = Pages(context, self._line)
        self._token = f"{context.node}:{new_id()[:8]}"
        self._hold = context.redis.register_script(_HOLD)
        self._release = context.redis.register_script(_RELEASE)
        self._windows: dict[Place, _Window] = {}
        self._dealt_at = float("-inf")
        self.last_ok = self.turned = monotonic()

    def run(self, stop: threading.Event) -> None:
        """Fill until `stop` is set. Survives every outage; gives its leases back at the end."""
        client = _blocking_client(self._context.redis, self._patience + 3.0)
        # The first look needs no bell.
        is_rung, is_full_round = True, True
        began = float("-inf")
        while not stop.is_set():
            try:
                if not is_full_round:
                    is_rung = self._listen(client)
                stop.wait(max(0.0, began + GATHER_SECONDS - monotonic()))
                began = monotonic()
                is_full_round = self._round(forward=is_rung) > 0 and self._is_more_to_do()
                self._pages.mark(older_than_seconds=MARK_SECONDS)
                self.last_ok = monotonic()
            except (redis.RedisError, BloxError) as error:
                _log.warning("fill_failed", error=repr(error))
                is_full_round = False
                stop.wait(_AWAY_SECONDS)
            except Exception:
                _log.exception("fill_broke")
                is_full_round = False
                stop.wait(_AWAY_SECONDS)
            self.turned = monotonic()
        client.close()
        self.close()

    def run_once(self, *, forward: bool = False) -> int:
        """Fill what is free now and deal credits; returns how many rows went to Redis.

        With `forward`, those who hold other queues' leases are rung: the bell may have been for
        them. Raises redis.RedisError and UnavailableError as they come.
        """
        moved = self._round(forward=forward)
        self._pages.mark()
        return moved

    def _round(self, *, forward: bool) -> int:
        # The bell may be that of a worker that has just begun.
        age = RUNG_NODES_SECONDS if forward else None
        nodes = self._nodes.get(self._line, max_age_seconds=age)
        places = self._places.get(nodes, self._line)
        listed = self._take_leases(places, forward=forward)
        taken_at = monotonic()
        self._pages.push_again()
        moved = 0
        for index, place in enumerate(places):
            if monotonic() - taken_at > LEASE_MILLIS / 2000:
                # Busy queues before this one took long: its lease must not run out meanwhile.
                listed = self._take_leases(places[index:], forward=False)
                taken_at = monotonic()
            if place in listed:
                moved += self._fill(self._windows[place], listed[place])
        self._deal()
        return moved

    def close(self) -> None:
        """Give the leases back, so that another process need not wait for their end."""
        self._pages.mark()
        try:
            for place in self._windows:
                self._release(keys=[self._lease_key(place)], args=[self._token])
        except redis.RedisError as error:
            _log.info("fill_leases_not_released", error=str(error))
        self._windows.clear()
        self._line.close()

    # -- bells and leases ------------------------------------------------------------------

    @property
    def _patience(self) -> float:
        settings = self._context.settings
        return min(settings.credit_seconds, settings.scan_seconds)

    def _listen(self, client: redis.Redis) -> bool:
        """Wait for a bell, but not for long; tell whether it was the one for all fillers."""
        bells = [self._context.scripts.fill_bell_key, self._own_bell(self._token)]
        mark_in = self._pages.oldest_push() + MARK_SECONDS - monotonic()
        # Never 0: that would be for ever.
        answer = client.blpop(bells, timeout=max(0.01, min(self._patience, mark_in)))
        return answer is not None and answer[0] == bells[0].encode()

    def _own_bell(self, token: str) -> str:
        return f"{self._context.scripts.fill_bell_key}:{token}"

    def _lease_key(self, place: Place) -> str:
        return f"{self._context.namespace}:{place.name}.filler"

    def _take_leases(self, places: Sequence[Place], *, forward: bool) -> dict[Place, int]:
        """Take or keep each place's lease; returns the list lengths of those that are held here."""
        if not places:
            return {}
        scripts = self._context.scripts
        with self._context.redis.pipeline(transaction=False) as pipeline:
            for place in places:
                self._hold(
                    keys=[self._lease_key(place)], args=[self._token, LEASE_MILLIS], client=pipeline
                )
                pipeline.llen(scripts.list_key(place.name))
            answers = pipeline.execute()
        held: dict[Place, int] = {}
        others: set[str] = set()
        for place, (holder, is_new), length in zip(
            places, answers[::2], answers[1::2], strict=True
        ):
            if holder.decode() != self._token:
                others.add(holder.decode())
                self._windows.pop(place, None)
                continue
            if is_new or place not in self._windows:
                # Somebody else may have filled and dealt since: nothing remembered holds.
                self._windows[place] = _Window(self._context, place)
                self._dealer.inherit(place)
            held[place] = int(length)
        if forward:
            for token in others:
                scripts.ring(self._own_bell(token))
        return held

    # -- filling ---------------------------------------------------------------------------

    def _fill(self, window: _Window, listed: int) -> int:
        place = window.place
        consumers = self._nodes.consumers(place.name, self._line)
        size = window_size(consumers, place.name, self._context.settings)
        if window.backlog.look(self._line):
            window.fullness.forget()
        used = window.fullness.read(listed, self._line)
        self._context.signals.emit(WindowMeasured(*place, used, size))
        free = size - used - self._dealer.outstanding(place)
        window.backlog.begin(free)
        moved = 0
        deadline = Deadline(ROUND_SECONDS)
        while free > 0 and window.backlog.has_rows and not deadline.expired():
            page = self._pages.claim(window.backlog, min(free, self._context.settings.scan_page))
            if page is None:
                continue
            window.fullness.claimed(page.earliest_due_at)
            pushed_to = self._pages.push(page)
            if pushed_to is None:
                break
            moved += len(page.rows)
            used = window.fullness.read(pushed_to, self._line)
            free = size - used - self._dealer.outstanding(place)
        window.is_cut_short = free > 0 and window.backlog.has_rows and deadline.expired()
        window.backlog.save(self._line)
        self._set_low_mark(window, size)
        window.room = 0 if window.backlog.has_rows else max(0, size - used)
        return moved

    def _is_more_to_do(self) -> bool:
        """Tell whether a round was cut short by its time and should go on at once."""
        return any(window.is_cut_short for window in self._windows.values())

    def _set_low_mark(self, window: _Window, size: int) -> None:
        """Ask fetches to ring when they leave less than half a window, as long as rows wait."""
        mark = max(1, size // 2) if window.backlog.has_rows and size > 0 else 0
        was, at = window.low
        now = monotonic()
        if mark == was and (mark == 0 or now - at < LOW_MILLIS / 3000):
            return
        key = self._context.scripts.low_key(window.place.name)
        if mark:
            self._context.redis.set(key, mark, px=LOW_MILLIS)
        else:
            self._context.redis.delete(key)
        window.low = (mark, now)

    def _deal(self) -> None:
        if monotonic() - self._dealt_at < self._context.settings.credit_seconds:
            return
        rooms = {place: window.room for place, window in self._windows.items()}
        try:
            self._dealer.deal(rooms, self._nodes.producers(self._line))
        finally:
            # From the end of the deal: the one before the last must have lapsed at the next.
            self._dealt_at = monotonic()


def _blocking_client(client: redis.Redis, timeout_seconds: float) -> redis.Redis:
    """Return a client for blocking reads: the same server, a longer socket time-out."""
    pool = client.connection_pool
    settings = {**pool.connection_kwargs, "socket_timeout": timeout_seconds}
    return redis.Redis(
        connection_pool=redis.ConnectionPool(connection_class=pool.connection_class, **settings)
    )
