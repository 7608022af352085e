"""Names and payloads of the catalogue's tasks: ids and parameters, never bytes.

Tasks name (version, blob), never (bucket, key).
"""

from __future__ import annotations

import pydantic

#: Names of the kinds; `enqueue` takes a name as well as a `Kind`.
UPLOAD_STORE = "upload.store"
UPLOAD_ASSEMBLE = "upload.assemble"
REVIEW_CHECK = "review.check"
REVIEW_RECHECK = "review.recheck"
REVIEW_AGAIN = "review.again"
DELETE_BLOB = "delete.blob"
NOTIFY_SEND = "notify.send"
ORIGIN_PULL = "origin.pull"
REPLICA_COPY = "replica.copy"
REPLICA_REPAIR = "replica.repair"
DELETE_PREFIX = "delete.prefix"
REPLICA_OBJECT = "replica.object"
BACKUP_RUN = "backup.run"
BACKUP_ITEM = "backup.item"
BACKUP_PRUNE = "backup.prune"
RESTORE_BLOB = "restore.blob"
RESTORE_RUN = "restore.run"


class StoreUpload(pydantic.BaseModel):
    """Move a version's bytes from staging to a channel."""

    version_id: int
    blob_id: int


class AssembleUpload(pydantic.BaseModel):
    """Make a version of the parts of a resumable upload.

    `generation` is the one that its `:complete` has taken on the key; without one it is the next.
    """

    session_id: int
    generation: int | None = None


class CheckReview(pydantic.BaseModel):
    """Review a version."""

    version_id: int
    blob_id: int
    review_id: int


class ReviewAgain(pydantic.BaseModel):
    """Review again what a bucket holds that has not passed under its present policy."""

    run_id: int


class DeleteBlob(pydantic.BaseModel):
    """Delete a blob's bytes, if it is still the same condemnation."""

    blob_id: int
    generation: int


class DeletePrefix(pydantic.BaseModel):
    """Delete all keys with a prefix that were there when it was asked for."""

    removal_id: int


class CopyObject(pydantic.BaseModel):
    """Bring a content to a channel of another bucket, and write it under its new key."""

    copy_id: int


class PullOrigin(pydantic.BaseModel):
    """Fetch an absent key from its bucket's origins."""

    pull_id: int


class RunBackup(pydantic.BaseModel):
    """Back a bucket up: enumerate, wait for the items, write the manifest."""

    run_id: int


class BackUpItem(pydantic.BaseModel):
    """Bring one content of a run to the backup target."""

    item_id: int


class PruneBackups(pydantic.BaseModel):
    """Drop a bucket's runs that are kept no longer, and what nothing needs on the target."""

    bucket_id: int
    target: str


class RestoreBlob(pydantic.BaseModel):
    """Bring lost bytes back under a fresh key."""

    loss_id: int


class RunRestore(pydantic.BaseModel):
    """Bring a bucket or prefix back, or search it for lost content, `deep`: with every byte."""

    restore_id: int
    deep: bool = False


class CopyReplica(pydantic.BaseModel):
    """Bring a blob to the channel of a replica."""

    replica_id: int
    blob_id: int


class SendNotification(pydantic.BaseModel):
    """Send one event to one address."""

    delivery_id: int
