"""Links: an address that lets whoever has it do one thing for a while, without a key."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Annotated, Literal, Self

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, StringConstraints, model_validator
from sqlalchemy.orm import Session

from services.api.deps import Caller, CallerDep
from services.api.json_route import JsonRoute
from services.api.links import link_query, quoted_path
from services.api.routes.puts import BucketName
from services.api.upload_views import UploadId
from services.api.views import OrderBody
from shared.catalog.accounts import Principal
from shared.catalog.buckets import get_bucket
from shared.catalog.limits import check_content_type, check_key
from shared.catalog.links import MAX_LINK_SECONDS, LinkClaims, sign_link
from shared.catalog.models.base import MAX_KEY_BYTES
from shared.catalog.uploading.sessions import find_session

router = APIRouter(tags=["objects"], route_class=JsonRoute)

_SCOPES = {"GET": "objects:read", "HEAD": "objects:read", "PUT": "objects:write"}
_MOST_PARTS = 10_000
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$", to_lower=True)]


class LinkTerms(OrderBody):
    """How long a link is good, and what its content must be."""

    expires_seconds: int = Field(3600, ge=1, le=MAX_LINK_SECONDS)
    max_bytes: int | None = Field(None, ge=0, le=2**53, description="Of the body; PUT only.")
    sha256: Sha256 | None = Field(None, description="The body must have it; PUT only.")


class LinkOrder(LinkTerms):
    """A link to be made."""

    method: Literal["GET", "HEAD", "PUT"]
    key: str = Field(max_length=1024)
    content_type: str | None = Field(
        None, max_length=255, description="The request must send just this; PUT only."
    )

    @model_validator(mode="after")
    def _reads_bind_nothing(self) -> Self:
        if self.method != "PUT" and (self.content_type, self.max_bytes, self.sha256) != (None,) * 3:
            raise ValueError("content_type, max_bytes and sha256 are for PUT")
        return self


class PartLinkOrder(LinkTerms):
    """A link to a part of an upload to be made."""

    part: int = Field(ge=1, le=_MOST_PARTS)


class LinkView(BaseModel):
    """A link. Whoever has `url` can use it: treat it as a secret."""

    method: str
    url: str = Field(description="As this request's address has it.")
    path: str = Field(description="The same without scheme and host.")
    headers: dict[str, str] = Field(description="What the request must send along.")
    expires_at: dt.datetime


@router.post("/buckets/{bucket}/links", summary="Make a link to an object", status_code=201)
async def post_link(
    request: Request, caller: CallerDep, bucket: BucketName, order: LinkOrder
) -> LinkView:
    """Make an address with which anybody can GET, HEAD or PUT one key until it expires.

    It acts for the key that makes it: with its scopes at the time of use, and not after it is
    revoked. Nothing is stored. Scope `objects:read`, for PUT `objects:write`.
    """
    key = check_key(order.key, max_bytes=MAX_KEY_BYTES)
    path = f"/v1/buckets/{bucket}/objects/{key}".encode()

    def admit(session: Session, principal: Principal) -> None:
        get_bucket(session, principal.tenant_id, bucket)

    return await _make(request, caller, order, path, admit)


@router.post(
    "/uploads/{upload_id}/links",
    tags=["uploads"],
    summary="Make a link to a part",
    status_code=201,
)
async def post_part_link(
    request: Request, caller: CallerDep, upload_id: UploadId, order: PartLinkOrder
) -> LinkView:
    """Make an address with which anybody can PUT one part of an upload until it expires.

    Otherwise as links to objects. Scope `objects:write`.
    """
    path = f"/v1/uploads/{upload_id}/parts/{order.part}".encode()

    def admit(session: Session, principal: Principal) -> None:
        find_session(session, principal.tenant_id, upload_id)

    put = LinkOrder(method="PUT", key="", **order.model_dump(exclude={"part"}))
    return await _make(request, caller, put, path, admit)


async def _make(
    request: Request,
    caller: Caller,
    order: LinkOrder,
    path: bytes,
    admit: Callable[[Session, Principal], None],
) -> LinkView:
    deps = caller.api.deps
    content_type = None if order.content_type is None else check_content_type(order.content_type)
    expires_at = int(deps.clock()) + order.expires_seconds

    def work(session: Session, principal: Principal) -> str:
        admit(session, principal)
        claims = LinkClaims(
            method=order.method,
            path=path,
            key_id=principal.key_id,
            expires_at=expires_at,
            content_type=content_type,
            max_bytes=order.max_bytes,
            sha256=order.sha256,
        )
        return link_query(claims, sign_link(session, deps.secrets, claims))

    query = await caller.read(_SCOPES[order.method], work)
    target = f"{quoted_path(path)}?{query}"
    headers = {} if content_type is None else {"content-type": content_type}
    return LinkView(
        method=order.method,
        url=f"{request.url.scheme}://{request.url.netloc}{target}",
        path=target,
        headers=headers,
        expires_at=dt.datetime.fromtimestamp(expires_at, dt.UTC),
    )
