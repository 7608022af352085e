"""PUT of one part of a resumable upload: in any order, at the same time, and again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session
from starlette.responses import Response

from services.api.intake import Intake
from services.api.links import LinkOrKeyDep
from services.api.openapi import PART_HEADERS, RAW_BODY
from services.api.part_storing import PartOrder, store_part
from services.api.taking import take_in
from services.api.upload_views import PartAnswerView, UploadId, limits_of, part_fields
from services.api.uploads import parse_declared
from shared.catalog.accounts import Principal
from shared.catalog.buckets import way_of
from shared.catalog.models import Bucket
from shared.catalog.regions import region_of
from shared.catalog.uploading.parts import room_for_part
from shared.catalog.uploading.rules import UploadLimits
from shared.catalog.uploading.sessions import find_session
from shared.core.errors import NotFoundError

router = APIRouter(tags=["uploads"])

PartNumber = Annotated[int, Path(description="1 to 10,000; the order of the whole.")]


@dataclass(frozen=True, slots=True)
class _Admission:
    tenant_id: str
    limits: UploadLimits
    max_bytes: int


@router.put(
    "/uploads/{upload_id}/parts/{number}",
    summary="Put a part",
    response_model=PartAnswerView,
    responses={
        409: {"description": "`upload_expired`, `upload_completing`, ...: it takes no parts."},
        507: {"description": "No room in staging."},
    },
    openapi_extra={"requestBody": RAW_BODY, "parameters": PART_HEADERS},
)
async def put_a_part(
    request: Request, caller: LinkOrKeyDep, upload_id: UploadId, number: PartNumber
) -> Response:
    """Stream one part; it is durable when this answers, and renews the upload's expiry.

    The last write of a number counts. Scope `objects:write`.
    """
    api = caller.api
    settings = api.deps.settings
    declared = parse_declared(
        request.scope["headers"], max_metadata_bytes=settings.max_metadata_bytes
    )

    def admit(session: Session, principal: Principal) -> _Admission:
        api.deps.catalogue.need("upload")
        found = find_session(session, principal.tenant_id, upload_id)
        bucket = session.get(Bucket, found.row.bucket_id)
        if bucket is None:
            raise NotFoundError("there is no such bucket", code="bucket_not_found")
        api.deps.catalogue.need(*way_of(bucket))
        limits = limits_of(settings, bucket.max_object_bytes)
        most = room_for_part(session, found, number, declared.size, limits)
        api.backlog.check(
            session,
            queue="upload",
            region=region_of(session, bucket, "upload"),
            tenant_id=principal.tenant_id,
        )
        return _Admission(principal.tenant_id, limits, most)

    admission = await caller.read("objects:write", admit)
    intake = caller.bound(
        Intake(
            staging=api.deps.staging,
            declared=declared,
            max_bytes=admission.max_bytes,
            reserve_bytes=api.deps.min_free_bytes,
        )
    )
    order = PartOrder(
        tenant_id=admission.tenant_id, upload_id=upload_id, number=number, limits=admission.limits
    )
    answer = await take_in(
        api,
        request,
        intake,
        lambda staged: store_part(api.deps.database, api.deps.staging, staged, order),
    )
    view = PartAnswerView(**part_fields(answer.part), expires_at=answer.expires_at)
    return JSONResponse(view.model_dump(mode="json"), headers={"etag": f'"{answer.part.md5}"'})
