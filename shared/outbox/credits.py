"""Credits: the right of a producer to bring a task into the window itself, right after its commit.

The filler's process deals them each second through one Redis key per producer; what is not used
lapses, and counts as window until then.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import redis
import structlog

from shared.core.clock import monotonic
from shared.outbox.context import OutboxContext
from shared.outbox.once import Outage
from shared.outbox.window import Place

#: KEYS one producer's credits; ARGV milliseconds until they lapse, then queue, count, ...
#: A field holds the count and the moment of its lapse, since queues may have different dealers.
_DEAL = """
local now = redis.call('TIME')
local lapse = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000) + tonumber(ARGV[1])
for i = 2, #ARGV, 2 do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1] .. ':' .. string.format('%.0f', lapse))
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""

#: KEYS one producer's credits. Takes all of them; answers queue, count, milliseconds left, ...
_COLLECT = """
local fields = redis.call('HGETALL', KEYS[1])
if #fields == 0 then return {} end
redis.call('DEL', KEYS[1])
local now = redis.call('TIME')
local at = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
local answer = {}
for i = 1, #fields, 2 do
  local count, lapse = string.match(fields[i + 1], '^(%d+):(%d+)$')
  if count then
    answer[#answer + 1] = fields[i]
    answer[#answer + 1] = tonumber(count)
    answer[#answer + 1] = tonumber(lapse) - at
  end
end
return answer
"""

_log = structlog.get_logger("outbox.credits")


def credits_key(namespace: str, node: str) -> str:
    """Return the key that holds one producer's credits."""
    return f"{namespace}:credits:{node}"


class Wallet:
    """A producer's credits, in memory. Thread-safe; `take` asks nobody."""

    def __init__(self, context: OutboxContext) -> None:
        self._context = context
        self._collect = context.redis.register_script(_COLLECT)
        self._outage = Outage(_log, "credits_redis")
        self._lock = threading.Lock()
        #: queue name -> [credits left, local monotonic moment of their lapse]
        self._held: dict[str, list[float]] = {}
        #: (queue name, tenant id) with a row waiting for the filler -> until when to believe so
        self._waiting: dict[tuple[str, str], float] = {}

    def take(self, queue_name: str, tenant_id: str) -> bool:
        """Use one credit of this queue; False when none is held or the tenant has rows waiting.

        A credit whose transaction is rolled back is lost; it would have lapsed anyway.
        """
        held = self._held.get(queue_name)
        if held is None:
            return False
        with self._lock:
            now = monotonic()
            if held[0] < 1 or held[1] <= now:
                return False
            if self._waiting and self._waiting.get((queue_name, tenant_id), 0.0) > now:
                # A new task must not overtake the tenant's older ones.
                return False
            held[0] -= 1
            return True

    def mark_backlog(self, queue_name: str, tenant_id: str) -> None:
        """Remember that this tenant has a row waiting for the filler: for a while it uses none."""
        until = monotonic() + self._context.settings.credit_lapse_seconds
        with self._lock:
            self._waiting[queue_name, tenant_id] = until

    def refresh(self) -> None:
        """Take what was dealt: it replaces what is held, queue by queue.

        Without Redis, what is held stays until it lapses.
        """
        before = monotonic()
        longest = self._context.settings.credit_lapse_seconds
        answer: list[Any] = []
        try:
            key = credits_key(self._context.namespace, self._context.node)
            answer = self._collect(keys=[key])
            self._outage.back()
        except redis.RedisError as error:
            self._outage.away(error=str(error))
        with self._lock:
            dealt: set[str] = set()
            for name, count, left in zip(answer[::3], answer[1::3], answer[2::3], strict=True):
                # Never longer than they were dealt for: Redis's clock may have been set back.
                lapse = before + min(longest, float(left) / 1000)
                self._held[name.decode()] = [float(count), lapse]
                if count:
                    dealt.add(name.decode())
            # Credits are dealt where no row waits: what was noted before is over. Else a steady
            # trickle of rows, each of which waits a moment, would never come back to credits.
            self._waiting = {
                key: until
                for key, until in self._waiting.items()
                if until > before and key[0] not in dealt
            }
            self._held = {name: held for name, held in self._held.items() if held[1] > before}


class Dealer:
    """The filler's side. For the thread of the filler; raises redis.RedisError as it comes."""

    def __init__(self, context: OutboxContext) -> None:
        self._context = context
        self._deal = context.redis.register_script(_DEAL)
        #: place -> deals not lapsed yet: (local monotonic moment of the lapse, credits)
        self._deals: dict[Place, list[tuple[float, int]]] = {}
        self._turn = 0

    def outstanding(self, place: Place) -> int:
        """Return the credits that may still be used: they count as window."""
        now = monotonic()
        deals = [deal for deal in self._deals.get(place, ()) if deal[0] > now]
        self._deals[place] = deals
        return sum(count for _, count in deals)

    def inherit(self, place: Place) -> None:
        """Begin to deal here: what another process has dealt lately is outstanding too."""
        dealt = self._context.redis.get(self._dealt_key(place))
        until = monotonic() + self._context.settings.credit_lapse_seconds
        self._deals[place] = [(until, int(dealt))] if dealt else []

    def deal(self, free: Mapping[Place, int], producers: Sequence[str]) -> None:
        """Deal up to half of each free window over the producers, in turn where it does not divide.

        `free` counts outstanding credits as free. The other half is left to the next deal, which
        replaces this one: credits are at hand all the time and never exceed the window. A place
        with 0 takes back what its producers have not used yet.
        """
        if not producers:
            return
        lapse_millis = int(self._context.settings.credit_lapse_seconds * 1000)
        budgets: dict[Place, int] = {}
        hands: list[list[str | int]] = [[] for _ in producers]
        for place, room in free.items():
            had = self.outstanding(place)
            budget = max(0, min(room // 2, room - had))
            if budget == 0 and had == 0:
                continue
            share, rest = divmod(budget, len(producers))
            for index, hand in enumerate(hands):
                extra = (index + self._turn) % len(producers) < rest
                hand += [place.name, share + extra]
            if budget:
                budgets[place] = budget
        self._turn += 1
        if not any(hands):
            return
        try:
            with self._context.redis.pipeline(transaction=False) as pipeline:
                for name, hand in zip(producers, hands, strict=True):
                    self._deal(
                        keys=[credits_key(self._context.namespace, name)],
                        args=[lapse_millis, *hand],
                        client=pipeline,
                    )
                for place, budget in budgets.items():
                    pipeline.set(self._dealt_key(place), budget, px=lapse_millis)
                pipeline.execute()
        finally:
            # Also when the answer was lost: they may have been dealt. Counted from now, since their
            # lapse was counted from before.
            until = monotonic() + self._context.settings.credit_lapse_seconds
            for place, budget in budgets.items():
                self._deals[place].append((until, budget))

    def _dealt_key(self, place: Place) -> str:
        return f"{self._context.namespace}:{place.name}.dealt"
