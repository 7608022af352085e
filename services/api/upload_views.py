"""What the routes of resumable uploads take and answer."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path
from pydantic import BaseModel, Field, StringConstraints

from services.api.lifetimes import Expires
from services.api.uploads import KEPT_HEADERS
from services.api.views import NAME_PATTERN, OrderBody, Time, View
from shared.catalog.models import SessionState, UploadPart, UploadSession
from shared.catalog.uploading.rules import (
    MAX_OPERATION_CHARACTERS,
    MAX_PARTS,
    CompleteOrder,
    UploadLimits,
    WantedPart,
)
from shared.runtime.settings import ApiSettings

UploadId = Annotated[str, Path(max_length=64, pattern=NAME_PATTERN, description="The upload's id.")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-fA-F]{64}$")]
Size = Annotated[int, Field(ge=0, le=2**63 - 1)]


class BeginUpload(Expires):
    """What is to be uploaded in parts."""

    operation_id: str = Field(
        max_length=MAX_OPERATION_CHARACTERS,
        description="Yours; the same request under it is the same upload, and has one result.",
    )
    bucket: str = Field(max_length=63, pattern=NAME_PATTERN)
    key: str = Field(max_length=1024)
    size: Size | None = Field(None, description="Of the whole, if you know it.")
    sha256: Sha256 | None = Field(None, description="Of the whole; checked when it is joined.")
    content_type: str | None = Field(None, max_length=255)
    metadata: dict[str, str] = Field(default_factory=dict, max_length=64)
    headers: dict[str, str] = Field(
        default_factory=dict,
        max_length=len(KEPT_HEADERS),
        description="Cache-Control, Content-Disposition, -Encoding, -Language: given back by GET.",
    )
    part_bytes: int | None = Field(
        None, ge=1, le=2**63 - 1, description="The size that you want to cut into."
    )


class NamedPart(BaseModel):
    """A part that counts, and what it should be."""

    number: int = Field(ge=1, le=MAX_PARTS)
    etag: str | None = Field(None, max_length=64)
    sha256: Sha256 | None = None


class CompleteUpload(OrderBody):
    """What the whole is; everything may be left out."""

    parts: list[NamedPart] | None = Field(
        None, max_length=MAX_PARTS, description="Those that count, in order; without it all."
    )
    size: Size | None = None
    sha256: Sha256 | None = None

    def order(self) -> CompleteOrder:
        """Return it as the catalogue takes it."""
        parts = None
        if self.parts is not None:
            parts = tuple(
                WantedPart(
                    number=part.number,
                    etag=None if part.etag is None else part.etag.strip('"').lower(),
                    sha256=None if part.sha256 is None else part.sha256.lower(),
                )
                for part in self.parts
            )
        sha256 = None if self.sha256 is None else self.sha256.lower()
        return CompleteOrder(parts=parts, size=self.size, sha256=sha256)


class PartView(View):
    """A part that counts."""

    number: int
    size: int
    sha256: str
    etag: str
    created_at: Time


class UploadView(View):
    """An upload in parts."""

    id: str
    operation_id: str
    bucket: str | None = Field(description="Null once the bucket is deleted.")
    key: str
    state: str = Field(description="`open`, `completing`, `done`, `failed` or `aborted`.")
    size: int | None = Field(description="As it was declared.")
    sha256: str | None
    part_bytes: int = Field(description="Cut the content into parts of this size.")
    received_bytes: int
    part_count: int
    created_at: Time
    expires_at: Time | None = Field(
        description="When it is given up, unless a part comes before; once over: forgotten."
    )
    task_id: int | None = Field(description="The task that joins the parts.")
    result: dict[str, Any] | None = Field(description="The version, once `done`.")
    error: dict[str, Any] | None = Field(description="Code and detail, once `failed`.")


class UploadWithParts(UploadView):
    """An upload, and a page of its parts."""

    parts: list[PartView]
    next_part: int | None = Field(description="`after` of the next page; null at the end.")


class PartAnswerView(PartView):
    """A part that was just taken in, and until when the upload waits for the next."""

    expires_at: Time


def upload_view(row: UploadSession, bucket: str | None) -> dict[str, Any]:
    """Return a session as it is shown."""
    is_done = row.state == SessionState.DONE
    return UploadView(
        id=row.public_id,
        operation_id=row.operation_id,
        bucket=bucket,
        key=row.key,
        state=str(row.state),
        size=row.size_bytes,
        sha256=row.sha256,
        part_bytes=row.part_bytes,
        received_bytes=row.received_bytes,
        part_count=row.part_count,
        created_at=row.created_at,
        expires_at=row.expires_at,
        task_id=row.task_id,
        result=row.result if is_done else None,
        error=None if is_done else row.result,
    ).model_dump(mode="json")


def part_fields(part: UploadPart) -> dict[str, Any]:
    """Return a part under the names of its view."""
    return {
        "number": part.number,
        "size": part.size_bytes,
        "sha256": part.sha256,
        "etag": part.md5,
        "created_at": part.created_at,
    }


def limits_of(settings: ApiSettings, bucket_max_bytes: int | None) -> UploadLimits:
    """Return what this deployment and a bucket allow."""
    most = settings.max_object_bytes
    if bucket_max_bytes is not None:
        most = min(most, bucket_max_bytes)
    return UploadLimits(
        max_object_bytes=most,
        min_part_bytes=settings.min_part_bytes,
        max_part_bytes=settings.max_part_bytes,
        expiry_seconds=settings.upload_expiry_seconds,
        max_open=settings.max_open_uploads,
    )
