"""How a kind of task that works on the catalogue is declared: its name, its payload, its hooks.

What all of them have in common stands here once.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import pydantic
from sqlalchemy.orm import Session

from shared.outbox.kinds import EndedTask, Kind
from shared.outbox.policy import RetryPolicy

P = TypeVar("P", bound=pydantic.BaseModel)

#: A day of tries for work that waits on storage; the count is only a net below that.
STORAGE_RETRY = RetryPolicy(max_attempts=150, give_up_after_seconds=24 * 3600.0)
#: Seconds that one execution may take: a large file over a slow channel.
STORAGE_LIMIT_SECONDS = 6 * 3600.0


class Hooks(Protocol):
    """What keeps domain rows in step with their task."""

    def lock(self, session: Session, payload: Any, /) -> None:
        """Lock the rows, before the task's own."""

    def on_end(self, session: Session, task: EndedTask, outcome: str, /) -> None:
        """Note an end other than completed."""

    def on_retry(self, session: Session, task: EndedTask, /) -> None:
        """Set the rows back for another life of the task, or refuse."""


def storage_kind(
    name: str,
    payload: type[P],
    hooks: Hooks | None,
    *,
    retry: RetryPolicy = STORAGE_RETRY,
    limit_seconds: float = STORAGE_LIMIT_SECONDS,
) -> Kind[P]:
    """Return a kind whose every transition is recorded; None where nothing depends on its end."""
    return Kind(
        name=name,
        payload=payload,
        retry=retry,
        time_limit_seconds=limit_seconds,
        locks=None if hooks is None else hooks.lock,
        on_end=None if hooks is None else hooks.on_end,
        on_retry=None if hooks is None else hooks.on_retry,
        events=True,
    )
