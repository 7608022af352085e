"""The channels table: what places there are to keep bytes, with credentials sealed at rest.

Every change moves the table's revision, which the processes' `ChannelCatalogue` compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.orm import Session

from shared.catalog.limits import check_channel_name, is_name
from shared.catalog.models import (
    BackupContent,
    BackupContentState,
    Bucket,
    ChannelRecord,
    Location,
    LocationState,
    Revision,
    utc_clock,
)
from shared.catalog.secret_box import SecretBox
from shared.core.errors import ConflictError, NotFoundError
from shared.storage.spec import ChannelSpec

#: Name of the revision that every change of the table moves.
CHANNELS = "channels"

_REVISIONS = cast("sa.Table", Revision.__table__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelInput:
    """A channel as an operator describes it. `credentials` None keeps those that are stored."""

    name: str
    kind: str
    region: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    credentials: Mapping[str, str] | None = field(default=None, repr=False)
    is_enabled: bool = True


@dataclass(frozen=True, slots=True)
class StoredChannel:
    """A channel as the processes use it."""

    spec: ChannelSpec
    region: str
    is_enabled: bool


def put_channel(session: Session, channel: ChannelInput, *, secrets: SecretBox) -> ChannelRecord:
    """Create or change a channel. Raises InvalidError when its settings cannot be right."""
    check_channel_name(channel.name)
    record = _locked(session, channel.name)
    if record is not None and record.kind != channel.kind:
        raise ConflictError("a channel's kind cannot change", code="channel_kind_fixed")
    credentials = channel.credentials
    if credentials is None and record is not None and record.credentials is not None:
        credentials = secrets.open(record.credentials)
    _check(ChannelSpec(channel.name, channel.kind, channel.settings, credentials or {}))
    if record is None:
        record = ChannelRecord(name=channel.name, created_at=utc_clock())
        session.add(record)
    record.kind = channel.kind
    record.region = channel.region
    record.settings = dict(channel.settings)
    if channel.credentials is not None:
        record.credentials = secrets.seal(channel.credentials) if channel.credentials else None
    record.is_enabled = int(channel.is_enabled)
    record.updated_at = utc_clock()
    session.flush()
    _bump(session)
    return record


def set_enabled(session: Session, name: str, *, enabled: bool) -> ChannelRecord:
    """Let a channel take new bytes, or not. What it holds stays readable and deletable."""
    record = _existing(session, name)
    record.is_enabled = int(enabled)
    record.updated_at = utc_clock()
    session.flush()
    _bump(session)
    return record


def delete_channel(session: Session, name: str) -> None:
    """Remove a channel. Raises ConflictError (`channel_in_use`) while anything names it."""
    record = _existing(session, name)
    holds = session.scalar(
        sa.select(
            sa.exists().where(Location.channel == name, Location.state != LocationState.TOMBSTONE)
        )
    )
    named = any(
        name in row.channels or name in (row.replica_channels or ())
        for row in session.execute(sa.select(Bucket.channels, Bucket.replica_channels))
    )
    if holds or named or _keeps_backups(session, name):
        raise ConflictError(
            "the channel still holds bytes or stands in a bucket", code="channel_in_use"
        )
    session.delete(record)
    session.flush()
    _bump(session)


def _keeps_backups(session: Session, name: str) -> bool:
    holds = session.scalar(
        sa.select(
            sa.exists().where(
                BackupContent.target == name,
                BackupContent.state != BackupContentState.TOMBSTONE,
            )
        )
    )
    rules = session.scalars(sa.select(Bucket.backup).where(Bucket.backup.is_not(None)))
    return bool(holds) or any(rule is not None and rule["target"] == name for rule in rules)


def list_channels(session: Session) -> list[ChannelRecord]:
    """Return all channels by name. Credentials stay sealed."""
    return list(session.scalars(sa.select(ChannelRecord).order_by(ChannelRecord.name)))


def read_revision(session: Session) -> int:
    """Return the number that grows with every change of the table."""
    found = session.scalar(sa.select(Revision.revision).where(Revision.name == CHANNELS))
    return 0 if found is None else found


def load_channels(session: Session, secrets: SecretBox) -> dict[str, StoredChannel]:
    """Return all channels by name with their credentials opened."""
    return {
        record.name: StoredChannel(
            spec=ChannelSpec(
                record.name,
                record.kind,
                record.settings,
                {} if record.credentials is None else secrets.open(record.credentials),
            ),
            region=record.region,
            is_enabled=bool(record.is_enabled),
        )
        for record in list_channels(session)
    }


def _check(spec: ChannelSpec) -> None:
    # Here, because the S3 kind takes a quarter of a second to import, and most processes never ask.
    from shared.storage.registry import check_spec

    check_spec(spec)


def _locked(session: Session, name: str) -> ChannelRecord | None:
    if not is_name(name):
        return None
    return session.scalars(
        sa.select(ChannelRecord)
        .where(ChannelRecord.name == name)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one_or_none()


def _existing(session: Session, name: str) -> ChannelRecord:
    record = _locked(session, name)
    if record is None:
        raise NotFoundError("there is no such channel", code="channel_not_found")
    return record


def _bump(session: Session) -> None:
    values = {"name": CHANNELS, "revision": 1}
    moved = {"revision": _REVISIONS.c.revision + 1}
    if session.get_bind().dialect.name == "sqlite":
        session.execute(
            sqlite.insert(_REVISIONS)
            .values(values)
            .on_conflict_do_update(index_elements=["name"], set_=moved)
        )
    else:
        session.execute(mysql.insert(_REVISIONS).values(values).on_duplicate_key_update(moved))
