"""What the outbox needs of others, declared here and fitted without an import.

Without them it runs unlimited: nothing is ever full, and a parked task waits for its time alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

#: What stands before a task's id where a place is only kept for it.
RESERVED = "reserved:"


class Companion(Protocol):
    """Renews what executions hold beside their lease."""

    def renew(self, tokens: Sequence[tuple[str, str]]) -> set[tuple[str, str]] | None:
        """Renew (name, token) pairs; returns the lost ones, None when that is not known now."""


class Places(Companion, Protocol):
    """Places on resources, so many of each. Every method raises UnavailableError, fails closed.

    A token holds a place; `reserved:<task id>` keeps one for a task. Nobody is let in without an
    epoch, which begins when the tokens of all that runs have been entered.
    """

    def acquire(self, name: str, token: str, *, limit: int, task_id: int) -> tuple[str, str]:
        """Take a place, or the task's own: ("held", epoch), ("full", "") or ("no_epoch", "")."""

    def confirm(self, name: str, token: str, *, epoch: str) -> bool:
        """Tell whether a token, which stands in its row by now, holds in the epoch of its acquire.

        One that does not is let go of.
        """

    def release(self, name: str, token: str) -> None:
        """Give a place back; nothing happens when it is gone."""

    def hand_over(self, name: str, token: str, task_id: int, *, limit: int) -> str:
        """Keep one's own place for a task: "reserved", "taken" (it has one) or "gone"."""

    def reserve(self, name: str, task_id: int, *, limit: int) -> str:
        """Keep a free place for a task: "reserved", "taken", "full" or "no_epoch"."""

    def in_use(self, name: str) -> int | None:
        """Return how many places are held or reserved, None when that is not known now."""

    def begin_rebuild(self) -> str | None:
        """Take the right to begin an epoch; None when another has it."""

    def enter(self, right: str, tokens: Sequence[tuple[str, str]]) -> bool:
        """Enter all tokens and begin an epoch, if the right still holds and there is none."""

    def close(self) -> None:
        """Let go of connections."""


class Limits(Protocol):
    """How many places resources have."""

    def limit(self, name: str) -> int:
        """Return the number, 0 for no limit. Raises UnavailableError when it cannot be known."""
