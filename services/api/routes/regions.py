"""Regions and queues: who consumes what, what waits where, draining."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Path
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session

from services.api.deps import CallerDep
from services.api.json_route import JsonRoute
from services.api.views import View
from shared.catalog.accounts import ADMIN, Principal
from shared.catalog.draining import Drained, move_waiting
from shared.catalog.regions import BASE, RegionState, drain, list_regions, reopen
from shared.core.clock import Deadline
from shared.outbox.nodes import Node, live_nodes
from shared.outbox.window import Place
from shared.runtime.statistics import QueueCounts, count_tasks

router = APIRouter(tags=["admin"], route_class=JsonRoute)

#: Seconds that one request may move tasks for.
_MOVE_SECONDS = 5.0
_NAME = r"^[a-z][a-z0-9-]{0,31}$"

RegionName = Annotated[str, Path(pattern=_NAME, description="The region's name.")]


class ConsumerView(BaseModel):
    """A process that takes tasks of a queue."""

    node: str
    threads: int
    threads_busy: int


class QueueView(BaseModel):
    """A queue in one region; the region of the base queue is empty."""

    queue: str
    region: str
    tasks: dict[str, int] = Field(description="Open and failed tasks by state.")
    retrying: int
    oldest_pending_seconds: float
    consumers: list[ConsumerView]


class QueueList(BaseModel):
    """All queues that have tasks or consumers, by name and region."""

    items: list[QueueView]


class RegionView(View):
    """A region that a bucket or a drain names."""

    name: str
    buckets: int
    drained_to: str | None = Field(description="Null while it has its own work; '' is the base.")


class RegionList(BaseModel):
    """All of them, by name."""

    items: list[RegionView]


class DrainOrder(BaseModel):
    """Where the region's work goes."""

    model_config = ConfigDict(extra="forbid")

    to: str = Field(BASE, pattern=r"^([a-z][a-z0-9-]{0,31})?$", description="'' is the base.")
    force: bool = Field(False, description="Also where nobody consumes what this region does.")


class DrainView(View):
    """How far a drain has come; repeat the request until `is_over`."""

    moved: int
    waiting: int
    running: int
    is_over: bool = Field(description="Nothing waits or runs there any more.")


@router.get("/queues", summary="List the queues")
async def get_queues(caller: CallerDep) -> QueueList:
    """Every queue with its tasks by state and its consumers per region. Scope `admin`."""
    await caller.read(ADMIN, lambda _session, _principal: None)
    context = caller.api.deps.outbox.context
    counts, nodes = await caller.api.work.files(
        lambda: (count_tasks(context.db), live_nodes(context))
    )
    return QueueList(items=_queues(counts, nodes))


@router.get("/regions", summary="List the regions")
async def get_regions(caller: CallerDep) -> RegionList:
    """The regions that buckets and drains name. Scope `admin`."""

    def work(session: Session, _: Principal) -> list[RegionState]:
        return list_regions(session)

    found = await caller.read(ADMIN, work)
    return RegionList(items=[RegionView.model_validate(one) for one in found])


@router.post("/regions/{region}:drain", summary="Drain a region")
async def drain_region(
    caller: CallerDep, region: RegionName, order: Annotated[DrainOrder | None, Body()] = None
) -> DrainView:
    """Send new work elsewhere and move what waits; running tasks are left to their workers.

    A 409 where nobody would consume it, unless it is forced. Scope `admin`.
    """
    wanted = order or DrainOrder()
    to = wanted.to

    def mark(session: Session, _: Principal) -> None:
        drain(session, region, to=to, force=wanted.force)

    await caller.write(ADMIN, mark)
    context = caller.api.deps.outbox.context

    def move() -> Drained:
        return move_waiting(context, region, to=to, deadline=Deadline(_MOVE_SECONDS))

    return DrainView.model_validate(await caller.api.work.files(move))


@router.post("/regions/{region}:reopen", summary="Open a drained region again", status_code=204)
async def reopen_region(caller: CallerDep, region: RegionName) -> None:
    """Let a drained region have its new work again. Scope `admin`."""

    def work(session: Session, _: Principal) -> None:
        reopen(session, region)

    await caller.write(ADMIN, work)


def _queues(counts: list[QueueCounts], nodes: list[Node]) -> list[QueueView]:
    places: dict[Place, QueueView] = {}

    def view(place: Place) -> QueueView:
        return places.setdefault(
            place,
            QueueView(
                queue=place.queue,
                region=place.region,
                tasks={},
                retrying=0,
                oldest_pending_seconds=0.0,
                consumers=[],
            ),
        )

    for count in counts:
        one = view(Place(count.queue, count.region))
        one.tasks = count.by_state
        one.retrying = count.retrying
        one.oldest_pending_seconds = count.oldest_pending_seconds
    for node in nodes:
        for name in node.queues:
            view(Place.of(name)).consumers.append(
                ConsumerView(node=node.name, threads=node.threads, threads_busy=node.threads_busy)
            )
    return [places[place] for place in sorted(places)]
