"""The upload worker's side of the catalogue: what there is to store, and how it is committed."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.blobs import has_stored_location
from shared.catalog.context import Catalogue
from shared.catalog.locking import LockedKey, lock_version
from shared.catalog.models import (
    Bucket,
    LocationState,
    Version,
    VersionState,
    utc_now,
)
from shared.catalog.places import lock_location
from shared.catalog.restores.losses import LossesOf
from shared.catalog.versions import make_current, may_store
from shared.core.errors import NotFoundError, PermanentError, SupersededError, TransientError


class IntentLost(TransientError):
    """A sweep has taken the location; the bytes must be written again under a fresh key."""

    code = "intent_lost"


@dataclass(frozen=True, slots=True)
class Job:
    """One upload: what to store, from where, and the channels it may go to, the preferred first."""

    version_id: int
    blob_id: int
    size_bytes: int
    sha256: str
    staging_key: str
    channels: tuple[str, ...]
    age_seconds: float


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A committed upload. `released` are the staging files that nobody needs any more.

    `is_duplicate` tells that the content was stored by another meanwhile, and ours is given up.
    """

    released: tuple[str, ...]
    is_duplicate: bool


def read_job(session: Session, version_id: int) -> Job | None:
    """Return what an upload task has to do, None when its version is stored already.

    Raises SupersededError when the version does not wait for it any more.
    """
    row = session.execute(
        sa.select(Version, Bucket.channels, utc_now())
        .outerjoin(Bucket, Bucket.id == Version.bucket_id)
        .where(Version.id == version_id)
    ).one_or_none()
    if row is None:
        raise SupersededError("the version is gone", version_id=version_id)
    version, channels, now = row
    if version.state == VersionState.STORED:
        return None
    if version.state != VersionState.PENDING:
        raise SupersededError(f"the version is {version.state}", version_id=version_id)
    if version.staging_key is None:
        raise PermanentError(
            "the version names no staging file", code="staging_missing", version_id=version_id
        )
    return Job(
        version_id=version.id,
        blob_id=version.blob_id,
        size_bytes=version.size_bytes,
        sha256=version.sha256,
        staging_key=version.staging_key,
        channels=tuple(channels or ()),
        age_seconds=(now - version.created_at).total_seconds(),
    )


class StoreCommit:
    """The commit of a verified copy: `lock` takes the domain rows, `apply` writes."""

    def __init__(
        self, catalogue: Catalogue, *, version_id: int, location_id: int, etag: str
    ) -> None:
        self._catalogue = catalogue
        self._version_id = version_id
        self._location_id = location_id
        self._etag = etag
        self._locked: LockedKey | None = None
        self._losses: LossesOf | None = None

    def lock(self, session: Session) -> None:
        """Lock object, versions, blobs (all of the same content too), then the location.

        Also the locations that the content has lost, and their losses.
        """
        try:
            self._locked = lock_version(session, self._version_id, content=True)
        except NotFoundError as error:
            raise SupersededError("the version is gone", version_id=self._version_id) from error
        winner = self._locked.winner
        if winner is None:
            lock_location(session, self._location_id)
        else:
            self._losses = LossesOf.lock(session, winner.id, besides=self._location_id)

    def apply(self, session: Session) -> StoredVersion:
        """Make the version stored and current.

        Raises SupersededError when it is not pending any more or something newer is readable, and
        IntentLost when a sweep has taken the location. Neither writes anything.
        """
        locked = self._locked
        if locked is None:
            raise AssertionError("apply comes after lock")
        version = locked.the_version()
        if not may_store(locked):
            raise SupersededError(
                "a newer version has won", version_id=version.id, state=version.state
            )
        location = lock_location(session, self._location_id)
        if (
            location is None
            or location.state != LocationState.INTENT
            or location.blob_id != version.blob_id
        ):
            raise IntentLost("a sweep has taken the location", location_id=self._location_id)
        winner = locked.winner
        is_duplicate = (
            winner is not None
            and winner.id != version.blob_id
            and has_stored_location(session, winner.id)
        )
        if not is_duplicate:
            location.state = LocationState.STORED
            location.stored_at = locked.now
            location.etag = self._etag[:255]
            location.upload_id = None
            if winner is not None:
                # The content's blob lost its copy: ours becomes its copy.
                location.blob_id = winner.id
                if self._losses is not None:
                    self._losses.end(session, location)
        session.flush()
        make_current(session, self._catalogue, locked)
        return StoredVersion(released=tuple(locked.released), is_duplicate=is_duplicate)
