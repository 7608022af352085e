"""One key of a backup put back: what the policy says, and the new version in one transaction.

The decision is made by a look, and judged again by its conditions under the key's lock.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from typing import Literal

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.backups.manifest import Entry
from shared.catalog.blobs import has_stored_location
from shared.catalog.conditions import ANY, UNCONDITIONAL, Conditions
from shared.catalog.context import Catalogue
from shared.catalog.models import (
    LIVING,
    Blob,
    Bucket,
    Copy,
    CopyState,
    Location,
    ObjectRow,
    Version,
    by_index,
    utc_clock,
)
from shared.catalog.places import is_good
from shared.catalog.puts import Staged, lock_put, write_put
from shared.catalog.restores.runs import Policy
from shared.catalog.review_policy import ReviewPolicy
from shared.catalog.uploading.arriving import is_arriving
from shared.catalog.verdicts import has_passed
from shared.catalog.writing import LockedPut, PutAnswer, store_at_once
from shared.core.errors import NotFoundError, PreconditionError

#: What becomes of an entry. `restored` and what would be, in a dry run, are the same word.
Outcome = Literal["restored", "same", "kept", "older", "refused", "unrecoverable"]


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done with an entry, while the key's `generation` is still the one seen.

    `conditions` hold as long: of that generation, a review can end.
    """

    outcome: Outcome
    conditions: Conditions = UNCONDITIONAL
    version_id: int | None = None
    generation: int = 0


def decide(session: Session, bucket_id: int, entry: Entry, policy: Policy) -> Decision:
    """Look what stands or is to come under the key now, and apply the policy.

    What was acknowledged and cannot be read yet is there as well: no restore that spares what is
    newer, or everything, may end it.
    """
    row = session.scalars(
        sa.select(ObjectRow)
        .where(ObjectRow.bucket_id == bucket_id, ObjectRow.key == entry.key)
        .execution_options(populate_existing=True)
    ).one_or_none()
    if row is None:
        return Decision("restored", Conditions(if_none_match=(ANY,)))
    # Read first: whatever comes after it is met by another generation under the key's lock.
    generation = row.generation
    served = None if row.served_version_id is None else session.get(Version, row.served_version_id)
    served_id = None if served is None else served.id
    is_same = served is not None and (
        served.sha256 == entry.sha256
        and served.size_bytes == entry.size
        and served.content_type == entry.content_type
        and dict(served.user_metadata) == entry.metadata
    )
    if is_same:
        return Decision("same", version_id=served_id)
    if policy != "always":
        coming = _coming(session, row, 0 if served is None else served.generation)
        times = [*coming, *([] if served is None else [served.created_at])]
        if times and policy == "never":
            return Decision("kept", version_id=served_id)
        if times and entry.modified <= max(times):
            return Decision("older", version_id=served_id)
    seen = (
        Conditions(if_none_match=(ANY,)) if served is None else Conditions(if_match=(served.etag,))
    )
    return Decision("restored", seen, generation=generation)


def _coming(session: Session, row: ObjectRow, generation: int) -> list[dt.datetime]:
    """Return when the writes above a generation were acknowledged that are still to come.

    They are in review, or their bytes are on the way: from another channel, or from their parts.
    """
    found: list[dt.datetime] = []
    # Versions last: what becomes one meanwhile takes no new generation, by which it would be met.
    if is_arriving(session, session.get_one(Bucket, row.bucket_id), row.key):
        now = session.scalar(sa.select(utc_clock()))
        found += [] if now is None else [now]
    copies = sa.select(Copy.created_at).where(
        Copy.state == CopyState.PENDING,
        Copy.target_object_id == row.id,
        Copy.generation > generation,
    )
    found += session.scalars(by_index(copies, Copy, "ix_copies_target"))
    versions = sa.select(Version.created_at).where(
        Version.object_id == row.id,
        Version.state.in_(sorted(LIVING)),
        Version.generation > generation,
    )
    return [*found, *session.scalars(versions)]


def is_stored_here(session: Session, tenant_id: str, sha256: str, size_bytes: int) -> bool:
    """Tell whether the tenant has a content stored, so that a key may refer to it."""
    stored = sa.exists().where(
        Blob.tenant_id == tenant_id,
        Blob.sha256 == sha256,
        Blob.size_bytes == size_bytes,
        Blob.live_slot == 1,
        Location.blob_id == Blob.id,
        is_good(),
    )
    return session.scalar(sa.select(stored)) is True


class KeyCommit:
    """The new version of one key, from content that is stored or from staged bytes.

    `staging_key` None asks for content that the tenant has stored; `apply` raises NotFoundError
    (`content_unknown`) when it has not.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        bucket_id: int,
        entry: Entry,
        decision: Decision,
        *,
        staging_key: str | None,
    ) -> None:
        self._catalogue = catalogue
        self._bucket_id = bucket_id
        self._entry = entry
        self._decision = decision
        self._staging_key = staging_key
        self._put: LockedPut | None = None

    def lock(self, session: Session) -> list[int]:
        """Lock the key and what belongs to it; returns the older tasks that this may end.

        Raises PreconditionError when the key has changed since the decision, and what a PUT
        raises.
        """
        entry = self._entry
        staged = Staged(
            key=self._staging_key or "",
            size=entry.size,
            sha256=entry.sha256,
            etag=entry.etag,
            content_type=entry.content_type,
            metadata=entry.metadata,
        )
        put = lock_put(
            session, self._bucket_id, entry.key, staged, conditions=self._decision.conditions
        )
        if self._staging_key is None:
            put = replace(put, facts=replace(put.facts, staging_key=None))
        if put.locked.row.generation != self._decision.generation:
            raise PreconditionError("the key was written or deleted meanwhile")
        self._put = put
        return put.older_tasks

    def apply(self, session: Session) -> PutAnswer:
        """Write the version."""
        put = self._put
        if put is None:
            raise AssertionError("apply comes after lock")
        if self._staging_key is not None:
            return write_put(session, self._catalogue, put)
        winner = put.locked.winner
        if (
            winner is None
            or not has_stored_location(session, winner.id)
            or not _may_pass(session, put.bucket, self._entry)
        ):
            raise NotFoundError("the content is not stored here", code="content_unknown")
        return store_at_once(session, self._catalogue, put.bucket, put.locked, put.facts)


def _may_pass(session: Session, bucket: Bucket, entry: Entry) -> bool:
    """Tell whether the content needs no review: where it does, it goes the way of a PUT."""
    if bucket.review_policy is None:
        return True
    return has_passed(
        session,
        tenant_id=bucket.tenant_id,
        sha256=entry.sha256,
        policy=ReviewPolicy.model_validate(bucket.review_policy),
        content_type=entry.content_type,
    )
