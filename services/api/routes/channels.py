"""Storage channels: make, change, list, remove."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session

from services.api.deps import CallerDep
from services.api.json_route import JsonRoute
from services.api.views import NAME_PATTERN, Time, View
from shared.catalog.accounts import ADMIN, Principal
from shared.catalog.channels import ChannelInput, delete_channel, list_channels, put_channel
from shared.catalog.models import ChannelRecord

router = APIRouter(tags=["admin"], route_class=JsonRoute)

ChannelName = Annotated[
    str, Path(max_length=64, pattern=NAME_PATTERN, description="The channel's name.")
]


class ChannelOrder(BaseModel):
    """A channel as it should be."""

    model_config = ConfigDict(extra="forbid")

    kind: str = Field(max_length=16, pattern=NAME_PATTERN, description="`file` or `s3`.")
    region: str = Field("", max_length=32, pattern=NAME_PATTERN)
    settings: dict[str, Any] = Field(
        default_factory=dict,
        description="`root` of a file channel; `endpoint`, `bucket`, `region` of an S3 one; "
        "`bandwidth_bytes_per_second`, `part_bytes`, `max_running` (executions that use it at a "
        "time, 0 for no limit) of both.",
    )
    credentials: dict[str, str] | None = Field(
        None, description="Sealed at rest, never shown. Null keeps those that are stored."
    )
    is_enabled: bool = Field(True, description="Whether it takes new bytes.")


class ChannelView(View):
    """A channel, without its credentials."""

    name: str
    kind: str
    region: str
    settings: dict[str, Any]
    has_credentials: bool
    is_enabled: bool
    created_at: Time
    updated_at: Time


class ChannelList(View):
    """All channels, by name."""

    items: list[ChannelView]


@router.put("/channels/{channel}", summary="Make or change a channel")
async def put_a_channel(
    caller: CallerDep, channel: ChannelName, order: ChannelOrder
) -> ChannelView:
    """Make a channel or change it; the processes see it within a second. Scope `admin`.

    One that is not enabled takes no new bytes; what it holds stays readable.
    """
    wanted = ChannelInput(
        name=channel,
        kind=order.kind,
        region=order.region,
        settings=order.settings,
        credentials=order.credentials,
        is_enabled=order.is_enabled,
    )

    def work(session: Session, _: Principal) -> ChannelView:
        record = put_channel(session, wanted, secrets=caller.api.deps.secrets)
        session.refresh(record)
        return _view(record)

    return await caller.write(ADMIN, work)


@router.get("/channels", summary="List channels")
async def get_channels(caller: CallerDep) -> ChannelList:
    """All channels, without credentials. Scope `admin`."""

    def work(session: Session, _: Principal) -> ChannelList:
        return ChannelList(items=[_view(record) for record in list_channels(session)])

    return await caller.read(ADMIN, work)


@router.delete("/channels/{channel}", summary="Remove a channel", status_code=204)
async def delete_a_channel(caller: CallerDep, channel: ChannelName) -> None:
    """Remove a channel; a 409 while it holds bytes or a bucket names it. Scope `admin`."""

    def work(session: Session, _: Principal) -> None:
        delete_channel(session, channel)

    await caller.write(ADMIN, work)


def _view(record: ChannelRecord) -> ChannelView:
    return ChannelView(
        name=record.name,
        kind=record.kind,
        region=record.region,
        settings=record.settings,
        has_credentials=record.credentials is not None,
        is_enabled=bool(record.is_enabled),
        created_at=record.created_at,
        updated_at=record.updated_at,
    )
