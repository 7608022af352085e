"""Buckets: a tenant's collections of objects and their rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import pydantic
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.backup_policy import BackupPolicy
from shared.catalog.backups.following import ensure_following
from shared.catalog.backups.runs import has_backups
from shared.catalog.context import Catalogue
from shared.catalog.lifecycle import Lifecycle
from shared.catalog.lifecycle_walks import begin_walk, end_walk, revision_of
from shared.catalog.limits import check_bucket_name, is_name
from shared.catalog.models import (
    LIVING,
    Bucket,
    ChannelRecord,
    Copy,
    CopyState,
    ObjectRow,
    SessionState,
    UploadSession,
    Version,
    by_index,
    utc_clock,
)
from shared.catalog.origins.policy import OriginPolicy, StoredOrigin, seal
from shared.catalog.possession import InstantUploads
from shared.catalog.replicas.rules import end_rules, set_rules
from shared.catalog.rereviews.starting import policy_changed
from shared.catalog.review_policy import ReviewPolicy
from shared.catalog.secret_box import SecretBox
from shared.catalog.supersede import is_last_word
from shared.core.errors import ConflictError, InvalidError, NotFoundError

#: Candidate channels that a bucket may name.
MAX_CHANNELS = 16
#: ASCII, as the column that it is compared with.
ChannelName = Annotated[str, pydantic.StringConstraints(pattern=r"^[ -~]{1,64}$")]

#: As a process may name its own: work in any other region would wait for ever.
Region = Annotated[str, pydantic.StringConstraints(pattern=r"^([a-z][a-z0-9-]{0,31})?$")]


class BucketSpec(pydantic.BaseModel):
    """What a caller says of a bucket: the preferred channel first."""

    model_config = pydantic.ConfigDict(extra="forbid")

    region: Region = ""
    region_fallback_seconds: float | None = pydantic.Field(
        default=None,
        ge=1,
        le=86400 * 365,
        description="Work goes to the base queue when the region was without consumers so long.",
    )
    channels: list[ChannelName] = pydantic.Field(min_length=1, max_length=MAX_CHANNELS)
    review_policy: ReviewPolicy | None = None
    max_object_bytes: int | None = pydantic.Field(default=None, ge=0, le=2**63 - 1)
    instant_upload: InstantUploads = pydantic.Field(
        default=InstantUploads.HASH,
        description="What an upload by hash takes: `hash` alone, a `challenge`, or never (`off`).",
    )
    lifecycle: Lifecycle | None = None
    backup: BackupPolicy | None = None
    origin: OriginPolicy | None = None
    replica_channels: list[ChannelName] = pydantic.Field(
        default_factory=list,
        max_length=MAX_CHANNELS,
        description="Channels on which every content is to stand, beside its first copy.",
    )


@dataclass(frozen=True, slots=True)
class PutBucket:
    """The bucket, and whether it is new."""

    bucket: Bucket
    created: bool


def put_bucket(
    session: Session,
    tenant_id: str,
    name: str,
    spec: BucketSpec,
    *,
    secrets: SecretBox | None = None,
    catalogue: Catalogue | None = None,
) -> PutBucket:
    """Create a bucket or replace its rules; the same again changes nothing.

    New rules count for later writes, those of the lifecycle also for what is there; reviews under
    way keep the policy that they began with. With `catalogue`, what is there is reviewed again when
    the review's rules are others, unless they say that it is to be left.
    Raises InvalidError for a name that is none or a channel that is not known, ConflictError
    (`bucket_region_fixed`) for another region. Headers for origins are sealed by `secrets`. With
    `catalogue`, SwitchedOffError for a new or changed rule that needs a service this deployment
    does not have.
    """
    check_bucket_name(name)
    _check_channels(session, spec.channels)
    _check_channels(session, spec.replica_channels)
    _check_backup(session, spec)
    bucket = _locked(session, tenant_id, name)
    created = bucket is None
    before = {} if bucket is None else _rules(bucket)
    version_before = None if bucket is None else bucket.review_policy_version
    if bucket is None:
        bucket = Bucket(tenant_id=tenant_id, name=name, region=spec.region, created_at=utc_clock())
        _fill(bucket, spec, secrets)
        session.add(bucket)
        session.flush()
    elif bucket.region != spec.region:
        raise ConflictError("a bucket's region cannot change", code="bucket_region_fixed")
    else:
        revision = revision_of(bucket)
        _fill(bucket, spec, secrets)
        session.flush()
        if revision_of(bucket) != revision:
            begin_walk(session, bucket)
    if catalogue is not None:
        _need_services(catalogue, bucket, spec, before)
    ensure_following(session, bucket)
    set_rules(session, bucket, spec.replica_channels)
    is_changed = not created and bucket.review_policy_version != version_before
    if catalogue is not None and is_changed:
        policy_changed(session, catalogue, bucket)
    session.refresh(bucket)
    return PutBucket(bucket, created)


def way_of(bucket: Bucket) -> tuple[str, ...]:
    """Return the queues that new content of a bucket goes through, the first one first."""
    return ("upload",) if bucket.review_policy is None else ("review", "upload")


def get_bucket(session: Session, tenant_id: str, name: str) -> Bucket:
    """Return a tenant's bucket.

    Raises NotFoundError (`bucket_not_found`), for another tenant's bucket as well.
    """
    bucket = None
    if is_name(tenant_id) and is_name(name):
        bucket = session.scalars(
            sa.select(Bucket)
            .where(Bucket.tenant_id == tenant_id, Bucket.name == name)
            .execution_options(populate_existing=True)
        ).one_or_none()
    if bucket is None:
        raise NotFoundError("there is no such bucket", code="bucket_not_found")
    return bucket


def list_buckets(
    session: Session, tenant_id: str, *, after: str = "", limit: int = 100
) -> list[Bucket]:
    """Return a tenant's buckets by name, those behind `after`."""
    if not (is_name(tenant_id) and is_name(after)):
        return []
    return list(
        session.scalars(
            sa.select(Bucket)
            .where(Bucket.tenant_id == tenant_id, Bucket.name > after)
            .order_by(Bucket.name)
            .limit(limit)
        )
    )


def delete_bucket(session: Session, tenant_id: str, name: str) -> None:
    """Delete an empty bucket. Raises NotFoundError and ConflictError (`bucket_not_empty`,
    `bucket_has_backups`).

    What is in review or on its way counts: it was acknowledged. Writers hold the bucket's shared
    lock, so that none is overlooked.
    """
    bucket = _locked(session, tenant_id, name)
    if bucket is None:
        raise NotFoundError("there is no such bucket", code="bucket_not_found")
    if _is_occupied(session, bucket):
        raise ConflictError("the bucket is not empty", code="bucket_not_empty")
    if has_backups(session, bucket.id):
        raise ConflictError("drop the bucket's backups first", code="bucket_has_backups")
    end_rules(session, bucket.id)
    end_walk(session, bucket.id)
    session.delete(bucket)
    session.flush()


def _is_occupied(session: Session, bucket: Bucket) -> bool:
    """Tell whether a locked bucket has a version that lives, or will have one as it was asked for.

    That is a copy over channels, or an upload in parts whose parts are being joined.
    """
    version = sa.select(sa.literal(1)).where(
        Version.bucket_id == bucket.id, Version.state.in_(sorted(LIVING))
    )
    upload = sa.select(sa.literal(1)).where(
        UploadSession.tenant_id == bucket.tenant_id,
        UploadSession.state == SessionState.COMPLETING,
        UploadSession.bucket_id == bucket.id,
    )
    looks = (
        by_index(version, Version, "ix_versions_bucket"),
        by_index(upload, UploadSession, "ix_upload_sessions_tenant"),
    )
    if any(session.scalar(look.limit(1)) is not None for look in looks):
        return True
    copies = sa.select(Copy, ObjectRow).join(ObjectRow, ObjectRow.id == Copy.target_object_id)
    copies = copies.where(Copy.state == CopyState.PENDING, Copy.target_bucket_id == bucket.id)
    found = session.execute(by_index(copies, Copy, "ix_copies_state")).all()
    # Those that something later has ended find that out by themselves.
    return any(
        is_last_word(session, row, copy.generation, task_id=copy.task_id) for copy, row in found
    )


def _locked(session: Session, tenant_id: str, name: str) -> Bucket | None:
    if not (is_name(tenant_id) and is_name(name)):
        return None
    return session.scalars(
        sa.select(Bucket)
        .where(Bucket.tenant_id == tenant_id, Bucket.name == name)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one_or_none()


def _fill(bucket: Bucket, spec: BucketSpec, secrets: SecretBox | None) -> None:
    policy = spec.review_policy
    bucket.channels = list(spec.channels)
    bucket.review_policy = None if policy is None else policy.model_dump(mode="json")
    bucket.review_policy_version = None if policy is None else policy.version
    bucket.max_object_bytes = spec.max_object_bytes
    bucket.instant_upload = spec.instant_upload.value
    bucket.region_fallback_seconds = spec.region_fallback_seconds
    bucket.lifecycle = None if spec.lifecycle is None else spec.lifecycle.model_dump(mode="json")
    bucket.backup = None if spec.backup is None else spec.backup.model_dump(mode="json")
    bucket.origin = _origin(bucket, spec, secrets)
    bucket.updated_at = utc_clock()


def _rules(bucket: Bucket) -> dict[str, pydantic.BaseModel]:
    """Return a bucket's rules by the queue of who carries them out, as this release reads them."""
    kept: dict[str, tuple[type[pydantic.BaseModel], dict[str, Any] | None]] = {
        "backup": (BackupPolicy, bucket.backup),
        "delete": (Lifecycle, bucket.lifecycle),
        "origin": (StoredOrigin, bucket.origin),
        "review": (ReviewPolicy, bucket.review_policy),
    }
    return {
        queue: model.model_validate(value)
        for queue, (model, value) in kept.items()
        if value is not None
    }


def _need_services(
    catalogue: Catalogue, bucket: Bucket, spec: BucketSpec, before: dict[str, pydantic.BaseModel]
) -> None:
    """Raise SwitchedOffError for a rule, new or other than before, that nobody here carries out."""
    for queue, rule in _rules(bucket).items():
        if rule != before.get(queue):
            catalogue.need(queue)
    if set(spec.replica_channels) - set(bucket.replica_channels or ()):
        catalogue.need("replica")


def _check_backup(session: Session, spec: BucketSpec) -> None:
    if spec.backup is None:
        return
    if spec.backup.target in (*spec.channels, *spec.replica_channels):
        raise InvalidError(
            "a backup goes to a channel that is none of the bucket's own",
            code="backup_target_own",
            channel=spec.backup.target,
        )
    _check_channels(session, [spec.backup.target])


def _origin(bucket: Bucket, spec: BucketSpec, secrets: SecretBox | None) -> dict[str, Any] | None:
    if spec.origin is None:
        return None
    before = None if bucket.origin is None else StoredOrigin.model_validate(bucket.origin)
    return seal(spec.origin, secrets, before).model_dump(mode="json")


def _check_channels(session: Session, names: list[str]) -> None:
    if len(set(names)) != len(names):
        raise InvalidError("a bucket names a channel once", code="channels_repeated")
    # Shared locks: a channel that is being removed is then either seen as gone, or seen in use.
    known = set(
        session.scalars(
            sa.select(ChannelRecord.name)
            .where(ChannelRecord.name.in_(names))
            .order_by(ChannelRecord.name)
            .with_for_update(read=True)
        )
    )
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InvalidError(
            f"there is no channel {', '.join(unknown)}", code="channel_unknown", channels=unknown
        )
