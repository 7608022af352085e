"""The processes that have reported lately."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import Field
from sqlalchemy.orm import Session

from services.api.deps import CallerDep
from services.api.json_route import JsonRoute
from services.api.views import Time, View
from shared.catalog.accounts import ADMIN, Principal
from shared.outbox.inspection import list_nodes

router = APIRouter(tags=["admin"], route_class=JsonRoute)


class NodeView(View):
    """One process."""

    node: str
    region: str
    role: str = Field(description="producer, worker or scheduler")
    queues: list[str]
    threads: int
    threads_busy: int
    mean_seconds: dict[str, float] | None = Field(description="Mean execution time by queue.")
    version: str | None
    started_at: Time
    last_seen: Time


class NodeList(View):
    """All processes, by name."""

    items: list[NodeView]


@router.get("/nodes", summary="List the processes")
async def get_nodes(caller: CallerDep) -> NodeList:
    """Every process of the platform that has written its row lately. Scope `admin`."""

    def work(session: Session, _: Principal) -> NodeList:
        return NodeList(items=[NodeView.model_validate(dict(row)) for row in list_nodes(session)])

    return await caller.read(ADMIN, work)
