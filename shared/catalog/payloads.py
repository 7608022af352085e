"""Names and payloads of the catalogue's tasks: ids and parameters, never bytes.

Tasks name (version, blob), never (bucket, key).
"""

from __future__ import annotations

import pydantic

#: Names of the kinds; `enqueue` takes a name as well as a `Kind`.
UPLOAD_STORE = "upload.store"
REVIEW_CHECK = "review.check"
DELETE_BLOB = "delete.blob"


class StoreUpload(pydantic.BaseModel):
    """Move a version's bytes from staging to a channel."""

    version_id: int
    blob_id: int


class CheckReview(pydantic.BaseModel):
    """Review a version."""

    version_id: int
    blob_id: int
    review_id: int


class DeleteBlob(pydantic.BaseModel):
    """Delete a blob's bytes, if it is still the same condemnation."""

    blob_id: int
    generation: int
