"""Draining a region: its new work goes elsewhere, what waits is moved, what runs is waited for."""

from __future__ import annotations

from dataclasses import dataclass

from shared.catalog.regions import list_drains
from shared.core.clock import Deadline
from shared.outbox.context import OutboxContext
from shared.outbox.moving import count_left, move_page
from shared.outbox.window import Place, places_with_rows


@dataclass(frozen=True, slots=True)
class Drained:
    """How far a drain has come. It is over only when nothing waits and nothing runs."""

    moved: int
    waiting: int
    running: int

    @property
    def is_over(self) -> bool:
        """Tell whether the region's consumers may be taken away."""
        return self.waiting == 0 and self.running == 0


def move_stragglers(context: OutboxContext, *, deadline: Deadline) -> dict[str, int]:
    """Move what waits in drained regions all the same; returns how many per region.

    A transaction that had read the region before its drain enqueues there after it, and a task
    that is run again goes back to where it was: nobody may consume that any more.
    """
    moved = {}
    for region, to in context.db.run_session(list_drains, read_only=True).items():
        count = _move(context, _places(context, region), to, deadline)
        if count:
            moved[region] = count
    return moved


def move_waiting(context: OutboxContext, region: str, *, to: str, deadline: Deadline) -> Drained:
    """Move what waits in a region's queues to `to`, as far as the deadline allows, and count.

    The region must have been marked as drained before, or new work keeps coming. Call it again
    until it is over. Raises UnavailableError as the database does.
    """
    places = _places(context, region)
    moved = _move(context, places, to, deadline)
    waiting = running = 0
    for place in places:
        left = count_left(context, place)
        waiting += left.waiting
        running += left.running
    return Drained(moved, waiting, running)


def _places(context: OutboxContext, region: str) -> list[Place]:
    return [place for place in places_with_rows(context) if place.region == region]


def _move(context: OutboxContext, places: list[Place], to: str, deadline: Deadline) -> int:
    moved = 0
    for place in places:
        while not deadline.expired():
            count = move_page(context, place, to)
            if count == 0:
                break
            moved += count
    return moved
