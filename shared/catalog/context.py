"""What the functions of the catalogue need beside a session: a way to enqueue and supersede tasks.

An `Outbox` fits `Tasks`; nothing here knows more of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy.orm import Session

from shared.core.errors import SwitchedOffError
from shared.outbox.enqueue import Enqueued

if TYPE_CHECKING:
    import pydantic

#: Seconds between the last reference's end and the deletion of a blob's bytes.
GRACE_SECONDS = 3600.0


class Tasks(Protocol):
    """What the catalogue asks of an outbox, all in the caller's transaction."""

    def enqueue(
        self, session: Session, kind: Any, payload: pydantic.BaseModel, **options: Any
    ) -> Enqueued:
        """Write one task."""

    def supersede(self, session: Session, task_ids: Sequence[int]) -> None:
        """End what is waiting among these tasks and ask the running ones to stop.

        Their domain rows are locked and changed by the caller already.
        """

    def wake(self, session: Session, task_id: int) -> bool:
        """Make a task due whose snooze waits for what this transaction has written.

        The caller has locked that row before it wrote.
        """

    def wake_all(self, session: Session, task_ids: Sequence[int]) -> int:
        """Do as `wake` for many tasks; returns how many were waiting."""

    def forget(self, session: Session, task_ids: Sequence[int]) -> int:
        """Drop those of these tasks that have ended: their rows are forgotten by the caller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """The outbox and the numbers of the catalogue. `register_kinds` makes one.

    `switched_off` names the queues that this deployment does not serve: no task is made for them.
    """

    tasks: Tasks
    grace_seconds: float = GRACE_SECONDS
    switched_off: frozenset[str] = frozenset()

    def serves(self, queue: str) -> bool:
        """Tell whether somebody works on this queue here."""
        return queue not in self.switched_off

    def need(self, *queues: str) -> None:
        """Raise SwitchedOffError unless this deployment serves the queues."""
        for queue in queues:
            if not self.serves(queue):
                raise SwitchedOffError(
                    f"the {queue} service is switched off in this deployment", queue=queue
                )
