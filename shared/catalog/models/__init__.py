"""The catalogue's tables. Floor 2; `shared/migrations` makes them."""

from __future__ import annotations

from shared.catalog.models.accounts import ApiKey, IdempotencyRecord, Tenant
from shared.catalog.models.backups import BackupContent, BackupItem, BackupRun
from shared.catalog.models.base import Base, by_index, utc_clock, utc_now
from shared.catalog.models.blobs import Blob, BlobRef, Location
from shared.catalog.models.buckets import Bucket, ChannelRecord, Revision
from shared.catalog.models.notifications import Delivery, Notification, Subscription
from shared.catalog.models.objects import ObjectRow, Version
from shared.catalog.models.origin import OriginMiss, OriginPull, OriginSegment
from shared.catalog.models.regions import RegionRow
from shared.catalog.models.removal import Copy, Expiry, Hold, LifecycleWalk, Removal
from shared.catalog.models.replicas import LocationAudit, Replica, ReplicaRule
from shared.catalog.models.restores import Loss, Restore, RestoreItem
from shared.catalog.models.reviews import (
    Review,
    ReviewRun,
    ReviewStep,
    Verdict,
    WebhookReviewer,
)
from shared.catalog.models.states import (
    LIVING,
    SERVED,
    UNFINISHED,
    BackupContentState,
    BackupItemState,
    BackupRunState,
    BlobState,
    CopyState,
    DeliveryState,
    HolderKind,
    HoldState,
    LocationState,
    LossState,
    PullState,
    RemovalState,
    ReplicaState,
    RestoreState,
    ReviewRunState,
    ReviewState,
    RuleState,
    SessionState,
    StepOutcome,
    VersionState,
)
from shared.catalog.models.uploads import UploadPart, UploadSession

__all__ = [
    "LIVING",
    "SERVED",
    "UNFINISHED",
    "ApiKey",
    "BackupContent",
    "BackupContentState",
    "BackupItem",
    "BackupItemState",
    "BackupRun",
    "BackupRunState",
    "Base",
    "Blob",
    "BlobRef",
    "BlobState",
    "Bucket",
    "ChannelRecord",
    "Copy",
    "CopyState",
    "Delivery",
    "DeliveryState",
    "Expiry",
    "Hold",
    "HoldState",
    "HolderKind",
    "IdempotencyRecord",
    "LifecycleWalk",
    "Location",
    "LocationAudit",
    "LocationState",
    "Loss",
    "LossState",
    "Notification",
    "ObjectRow",
    "OriginMiss",
    "OriginPull",
    "OriginSegment",
    "PullState",
    "RegionRow",
    "Removal",
    "RemovalState",
    "Replica",
    "ReplicaRule",
    "ReplicaState",
    "Restore",
    "RestoreItem",
    "RestoreState",
    "Review",
    "ReviewRun",
    "ReviewRunState",
    "ReviewState",
    "ReviewStep",
    "Revision",
    "RuleState",
    "SessionState",
    "StepOutcome",
    "Subscription",
    "Tenant",
    "UploadPart",
    "UploadSession",
    "Verdict",
    "Version",
    "VersionState",
    "WebhookReviewer",
    "by_index",
    "utc_clock",
    "utc_now",
]
