"""The bytes under review, for the reviewer that was asked."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from services.api.content import ContentReader, ContentResponse, Place
from services.api.deps import get_api
from services.api.doors import opener
from services.api.openapi import RAW_CONTENT
from services.api.routes.reviewers import StepId
from services.api.views import MAX_ID
from shared.catalog.review_content import ReviewContent, open_review_content

router = APIRouter(tags=["reviews"])


@router.get(
    "/review-content/{step}",
    summary="Read content under review",
    response_class=Response,
    responses={200: RAW_CONTENT},
)
async def get_review_content(
    request: Request,
    step: StepId,
    expires: Annotated[int, Query(ge=0, le=MAX_ID)],
    signature: Annotated[str, Query(max_length=128)],
) -> Response:
    """The whole content, by the `content_path` of a question; until the step has its answer.

    Needs no key. A 409 when nobody is asked any more.
    """
    api = get_api(request)

    def work(session: Session) -> ReviewContent:
        return open_review_content(
            session,
            api.deps.secrets,
            step,
            expires_at=expires,
            signature=signature,
            now=api.deps.clock(),
        )

    found = await api.work.read(work)
    places = [Place(opener(api, channel), key) for channel, key in found.places]
    reader = ContentReader(places, start=0, length=found.size)
    first = await api.work.files(reader.read)
    headers = {
        "content-length": str(found.size),
        # Nothing that a browser would show or keep.
        "content-type": "application/octet-stream",
        "content-disposition": "attachment",
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
        "x-blox-sha256": found.sha256,
    }
    return ContentResponse(
        reader,
        first,
        work=api.work,
        status=200,
        headers=headers,
        idle_seconds=api.deps.settings.body_idle_seconds,
    )
