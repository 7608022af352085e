"""Deletions that a channel refuses: what, since how many tries, and when it is tried again."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field
from sqlalchemy.orm import Session

from services.api.deps import CallerDep
from services.api.json_route import JsonRoute
from services.api.paging import PagingDep
from services.api.views import NAME_PATTERN, PageView, Time, View
from shared.catalog.accounts import ADMIN, Principal
from shared.catalog.parked import list_parked

router = APIRouter(tags=["admin"], route_class=JsonRoute)


class ParkedView(View):
    """One copy whose bytes are to go."""

    id: int
    channel: str
    key: str = Field(description="The physical key on the channel.")
    blob_id: int
    tries: int
    next_try_at: Time | None
    error_detail: str | None


@router.get("/parked-deletions", summary="List deletions that a channel refuses")
async def get_parked(
    caller: CallerDep,
    paging: PagingDep,
    channel: Annotated[
        str | None, Query(max_length=64, pattern=NAME_PATTERN, description="Only of this one.")
    ] = None,
) -> PageView[ParkedView]:
    """Copies that could not be deleted yet, of every tenant, oldest first. Scope `admin`."""

    def work(session: Session, _: Principal) -> list[ParkedView]:
        rows = list_parked(session, after=paging.cursor or 0, limit=paging.rows, channel=channel)
        return [ParkedView.model_validate(row) for row in rows]

    return paging.show(await caller.read(ADMIN, work), ParkedView)
