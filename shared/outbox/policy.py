"""When a failed attempt is tried again. Pure: no clock, no database."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Jitter = Literal["none", "equal", "full"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Exponential back-off with a cap.

    The wait before try n + 1 is `base_seconds * factor ** (n - 1)`, at most `cap_seconds`. Jitter
    `equal` keeps half of it and draws the other half, `full` draws all of it, `none` shows the
    plain numbers. The task fails after `max_attempts` answers, or once it is older than
    `give_up_after_seconds`.
    """

    base_seconds: float = 2.0
    factor: float = 2.0
    cap_seconds: float = 900.0
    jitter: Jitter = "equal"
    max_attempts: int = 12
    give_up_after_seconds: float | None = None

    def __post_init__(self) -> None:
        """Refuse policies that could not be followed."""
        if self.base_seconds <= 0 or self.factor < 1 or self.cap_seconds < self.base_seconds:
            raise ValueError("a retry policy needs base > 0, factor >= 1 and cap >= base")
        if self.max_attempts < 1:
            raise ValueError("max_attempts counts the first try too: at least 1")

    def wait_seconds(self, attempt: int, *, draw: Callable[[], float] = random.random) -> float:
        """Return the seconds to wait after the answer number `attempt` (1 for the first)."""
        if attempt < 1:
            raise ValueError("attempts are counted from 1")
        # The exponent is bounded, so that attempt 10,000 is the cap and not an overflow.
        wait = min(self.cap_seconds, self.base_seconds * self.factor ** min(attempt - 1, 64))
        if self.jitter == "equal":
            return wait / 2 + draw() * wait / 2
        if self.jitter == "full":
            return draw() * wait
        return wait

    def is_spent(self, attempt: int, *, max_attempts: int, age_seconds: float) -> bool:
        """Tell whether no further try is left after the answer number `attempt`."""
        if attempt >= max_attempts:
            return True
        return self.give_up_after_seconds is not None and age_seconds >= self.give_up_after_seconds
