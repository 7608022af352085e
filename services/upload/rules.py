"""Which channel an upload tries next, and what its checkpoint remembers. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Candidate:
    """One of a bucket's channels as it stands now.

    `is_ready` is False while its breaker is open; then `opens_in_seconds` says for how long.
    `is_full` tells that it had no free place when it was asked.
    """

    name: str
    is_enabled: bool = True
    is_ready: bool = True
    is_full: bool = False
    opens_in_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class OpenTry:
    """A try that is neither done nor failed: its channel, its location and how far it came."""

    channel: str
    location_id: int
    key: str
    progress: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What the checkpoint keeps: tries counted per channel, and the one under way.

    A try is counted before its first call, once: an execution that was cut short leaves it open,
    and the next one goes on with it. `attempt` and `is_spent` tell a manual retry, which starts
    the counts anew, from an ordinary one.
    """

    tries: Mapping[str, int] = field(default_factory=dict)
    current: OpenTry | None = None
    attempt: int = 0
    is_spent: bool = False

    @classmethod
    def load(cls, checkpoint: Mapping[str, Any] | None, *, attempt: int) -> Plan:
        """Read a checkpoint; `attempt` is the task's count of answers now."""
        if not checkpoint:
            return cls(attempt=attempt)
        current = checkpoint.get("current")
        is_new_life = bool(checkpoint.get("spent")) or attempt < int(checkpoint["attempt"])
        return cls(
            tries={} if is_new_life else {k: int(v) for k, v in checkpoint["tries"].items()},
            current=OpenTry(**current) if current else None,
            attempt=attempt,
        )

    def dump(self) -> dict[str, Any]:
        """Return the checkpoint's JSON."""
        current = self.current
        return {
            "tries": dict(self.tries),
            "attempt": self.attempt,
            "spent": self.is_spent,
            "current": None
            if current is None
            else {
                "channel": current.channel,
                "location_id": current.location_id,
                "key": current.key,
                "progress": current.progress,
            },
        }

    def begun(self, current: OpenTry, *, is_same_try: bool) -> Plan:
        """Return the plan with a try under way; counted unless an open one goes on in it."""
        counted = self.tries.get(current.channel, 0) + (0 if is_same_try else 1)
        return replace(self, tries={**self.tries, current.channel: counted}, current=current)

    def progressed(self, progress: dict[str, Any]) -> Plan:
        """Return the plan with what the present try has reached."""
        if self.current is None:
            raise ValueError("no try is under way")
        return replace(self, current=replace(self.current, progress=progress))

    def failed(self) -> Plan:
        """Return the plan without the present try, whose channel failed."""
        return replace(self, current=None)

    def uncounted(self) -> Plan:
        """Return the plan without the present try, which never reached its channel."""
        if self.current is None:
            return self
        name = self.current.channel
        counted = max(0, self.tries.get(name, 0) - 1)
        return replace(self, tries={**self.tries, name: counted}, current=None)

    def spent(self) -> Plan:
        """Return the plan after the last try of the last channel."""
        return replace(self, current=None, is_spent=True)


@dataclass(frozen=True, slots=True)
class Use:
    """Send the bytes to this channel."""

    channel: str


@dataclass(frozen=True, slots=True)
class WaitForPlace:
    """What is left has no free place: be woken for the first of them, uncounted."""

    channel: str


@dataclass(frozen=True, slots=True)
class WaitForBreaker:
    """All that is left are channels behind an open breaker: come back when the first may be asked.

    That counts nothing.
    """

    channel: str
    seconds: float


@dataclass(frozen=True, slots=True)
class TryLater:
    """Every channel failed in this execution, some have tries left: one answer, then back-off."""


@dataclass(frozen=True, slots=True)
class WaitForOperator:
    """The channels with tries left are switched off or gone."""


@dataclass(frozen=True, slots=True)
class AllSpent:
    """No channel has a try left."""


Choice = Use | WaitForPlace | WaitForBreaker | TryLater | WaitForOperator | AllSpent


def choose(
    candidates: Sequence[Candidate],
    plan: Plan,
    *,
    failed_now: AbstractSet[str],
    tries_per_channel: int,
) -> Choice:
    """Choose among a bucket's channels, given in its order of preference.

    A try that was cut short goes on first, also when it was its channel's last one; what it has
    sent is worth waiting for a place.
    """
    current = plan.current.channel if plan.current else None

    def has_tries(name: str) -> bool:
        return name == current or plan.tries.get(name, 0) < tries_per_channel

    left = [one for one in candidates if has_tries(one.name)]
    if not left:
        return AllSpent() if candidates else WaitForOperator()
    enabled = [one for one in left if one.is_enabled]
    if not enabled:
        return WaitForOperator()
    asked = [one for one in enabled if one.is_ready and one.name not in failed_now]
    usable = [one.name for one in asked if not one.is_full]
    full = [one.name for one in asked if one.is_full]
    if plan.current is not None and plan.current.progress and current in full:
        return WaitForPlace(plan.current.channel)
    if usable:
        return Use(current if current in usable else usable[0])
    if full:
        return WaitForPlace(full[0])
    if any(one.is_ready for one in enabled):
        return TryLater()
    # Of those that may be asked at about the same time, the preferred one.
    soonest = min(enabled, key=lambda one: round(one.opens_in_seconds))
    return WaitForBreaker(soonest.name, soonest.opens_in_seconds)
