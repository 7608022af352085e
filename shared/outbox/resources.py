"""Holding a place on a resource for the length of a block: taken, written into the row, confirmed.

The token stands in the task's row before the place is used, so that a Redis that lost everything
can be told who holds what. It is renewed with the lease, and given on to the next at the end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from shared.core.errors import ResourceBusy, SlotLost, UnavailableError
from shared.core.failpoints import failpoint
from shared.core.ids import new_id
from shared.outbox.context import OutboxContext
from shared.outbox.execution import Execution
from shared.outbox.heartbeat import Heartbeat
from shared.outbox.parked import ParkedRows
from shared.outbox.parking import Parking
from shared.outbox.ports import RESERVED, Places
from shared.outbox.rebuilding import rebuild
from shared.outbox.statements import park as statements


class Resources:
    """Places for the executions of one process. Thread-safe."""

    def __init__(self, context: OutboxContext, heartbeat: Heartbeat) -> None:
        self._context = context
        self._heartbeat = heartbeat
        self._parking = Parking(context)

    @contextmanager
    def hold(
        self,
        execution: Execution,
        resource: str,
        *,
        limit: int,
        is_well: Callable[[], bool] = lambda: True,
    ) -> Iterator[None]:
        """Hold one of `limit` places of a resource (0: there is no limit, and nothing is asked).

        Raises ResourceBusy when all are taken or it cannot be known: outside of a handler's own
        care it parks the task. Raises SlotLost, LeaseLost or CancelRequested when the execution
        must stop. `is_well` False at the end frees the place without waking the next.
        """
        places = self._context.places
        if limit <= 0 or places is None or _holds(execution, resource):
            yield
            return
        token = new_id()
        is_asked = False
        try:
            # The interrupt must not hit between a place and what gives it back.
            with execution.shielded():
                is_asked = True
                self._take(execution, places, resource, token, limit)
            yield
        except _Full:
            is_asked = False
            raise
        finally:
            if is_asked:
                with execution.shielded():
                    self._leave(execution, resource, token, limit, is_well=is_well())

    def wake(self, resource: str, count: int) -> int:
        """Wake up to `count` tasks parked on a resource that has just shown that it is well.

        Returns how many; never raises for an outage.
        """
        rows = ParkedRows(self._context)
        try:
            limit = self._parking.limit(resource)
            if limit > 0:
                free = self._parking.free_places(resource, limit)
                return self._parking.fill(resource, limit, min(free, count), is_due_only=False)
            woken = rows.wake(resource, rows.next(resource, count), token=None)
        except UnavailableError:
            return 0
        if woken:
            self._parking.ring()
        return len(woken)

    # -- steps ---------------------------------------------------------------------------------

    def _take(
        self, execution: Execution, places: Places, resource: str, token: str, limit: int
    ) -> None:
        try:
            outcome, epoch = self._acquire(execution, places, resource, token, limit)
        except UnavailableError as error:
            raise ResourceBusy(
                f"whether {resource} has a place cannot be known: {error}", resource=resource
            ) from error
        if outcome != "held":
            raise _Full(f"{resource}: all {limit} places are taken", resource=resource)
        failpoint("slots.acquired")
        own = {name: held for name, held in execution.slots.items() if name != resource}
        self._write(execution, {**own, resource: token})
        failpoint("slots.written")
        try:
            is_confirmed = places.confirm(resource, token, epoch=epoch)
        except UnavailableError as error:
            raise ResourceBusy(
                f"the place on {resource} cannot be confirmed: {error}", resource=resource
            ) from error
        if not is_confirmed:
            raise SlotLost("Redis lost the place before it was used", resource=resource)
        execution.slots = {resource: token, **_held(own)}
        # It was woken for another place than the one that it uses now.
        self._parking.give_up(own, reserved_only=True)

    def _acquire(
        self, execution: Execution, places: Places, resource: str, token: str, limit: int
    ) -> tuple[str, str]:
        task_id = execution.task.id
        answer = places.acquire(resource, token, limit=limit, task_id=task_id)
        if answer[0] == "no_epoch" and rebuild(self._context):
            answer = places.acquire(resource, token, limit=limit, task_id=task_id)
        return answer

    def _write(self, execution: Execution, slots: dict[str, str]) -> None:
        db = self._context.db
        values = (json.dumps(slots), execution.task.id, execution.owner, execution.fence)

        def work(cursor: Any) -> bool:
            cursor.execute(db.dialect.sql(statements.SET_SLOTS), values)
            return int(cursor.rowcount) == 1

        if not db.run(work):
            raise self._heartbeat.why(execution)

    def _leave(
        self, execution: Execution, resource: str, token: str, limit: int, *, is_well: bool
    ) -> None:
        execution.slots = {name: held for name, held in execution.slots.items() if name != resource}
        try:
            limit = self._parking.limit(resource, limit)
        except UnavailableError:
            is_well = False
        failpoint("slots.before_release")
        if is_well:
            self._parking.give_on(resource, token, limit=limit)
        else:
            self._parking.free(resource, token)


class _Full(ResourceBusy):
    """All places are taken: there is none to give back."""


def _held(slots: dict[str, str]) -> dict[str, str]:
    return {name: token for name, token in slots.items() if not token.startswith(RESERVED)}


def _holds(execution: Execution, resource: str) -> bool:
    token = execution.slots.get(resource)
    return token is not None and not token.startswith(RESERVED)
