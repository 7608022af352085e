"""One call of a channel by a thread that must hear meanwhile that it has to stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from shared.core.clock import Deadline
from shared.storage.crew import Crew, Stalled
from shared.storage.errors import ChannelTimeout

T = TypeVar("T")


def awake(job: Callable[[], T], *, check: Callable[[], None], deadline: Deadline) -> T:
    """Make the call in a helper thread, asking `check` twice a second; returns its result.

    Raises its error, what `check` raises, DeadlinePassed, and ChannelTimeout for a call that never
    ends. A call that is left behind may still be carried out.
    """
    with Crew[T](check=check, deadline=deadline) as crew:
        try:
            return crew.run(job)
        except Stalled as error:
            raise ChannelTimeout("nothing moves") from error
