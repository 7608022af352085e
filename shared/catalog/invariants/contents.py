"""Invariants of contents: who refers to them, where they are, and when they go."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import (
    Blob,
    BlobRef,
    BlobState,
    HolderKind,
    Location,
    LocationState,
    Version,
    VersionState,
)
from shared.outbox.breach import Breach


def content_breaches(
    session: Session, late: dt.datetime, *, serves_deletions: bool = True
) -> Iterator[Breach]:
    """Yield what is wrong with blobs, references and locations.

    A removal that was due after `late` may be under way; without `serves_deletions` all wait.
    """
    yield from _placeless(session)
    yield from _unreferring(session)
    yield from _stray_references(session)
    if serves_deletions:
        yield from _unreferenced(session, late)
    yield from _undead(session)
    yield from _live_twice(session)
    yield from _keys_twice(session)


def _placeless(session: Session) -> Iterator[Breach]:
    place = sa.exists().where(
        Location.blob_id == Version.blob_id, Location.state == LocationState.STORED
    )
    query = (
        sa.select(Version.id, Version.blob_id, Blob.state)
        .outerjoin(Blob, Blob.id == Version.blob_id)
        .where(
            Version.state == VersionState.STORED,
            sa.or_(Blob.id.is_(None), Blob.state != BlobState.LIVE, ~place),
        )
    )
    for version_id, blob_id, state in session.execute(query):
        detail = f"its blob {blob_id} is {state}, or no stored location has it"
        yield Breach("stored versions have a place", f"version {version_id}", detail)


def _unreferring(session: Session) -> Iterator[Breach]:
    own = sa.and_(
        BlobRef.blob_id == Version.blob_id,
        BlobRef.holder_kind == HolderKind.VERSION,
        BlobRef.holder_id == Version.id,
    )
    query = (
        sa.select(Version.id, Version.blob_id)
        .outerjoin(BlobRef, own)
        .where(Version.state == VersionState.STORED, BlobRef.id.is_(None))
    )
    for version_id, blob_id in session.execute(query):
        detail = f"stored, but has no reference to blob {blob_id}"
        yield Breach("references are the stored versions", f"version {version_id}", detail)


def _stray_references(session: Session) -> Iterator[Breach]:
    query = (
        sa.select(BlobRef.id, BlobRef.blob_id, BlobRef.holder_id, Version.state)
        .outerjoin(Version, Version.id == BlobRef.holder_id)
        .where(
            BlobRef.holder_kind == HolderKind.VERSION,
            sa.or_(
                Version.id.is_(None),
                Version.state != VersionState.STORED,
                Version.blob_id != BlobRef.blob_id,
            ),
        )
    )
    for ref_id, blob_id, version_id, state in session.execute(query):
        detail = f"of version {version_id} ({state or 'not there'}) to blob {blob_id}"
        yield Breach("references are the stored versions", f"reference {ref_id}", detail)


def _unreferenced(session: Session, late: dt.datetime) -> Iterator[Breach]:
    held = sa.exists().where(BlobRef.blob_id == Blob.id)
    query = sa.select(Blob.id, Blob.state, Blob.delete_after).where(
        ~held,
        sa.or_(
            Blob.state == BlobState.LIVE,
            sa.and_(Blob.state == BlobState.CONDEMNED, Blob.delete_after < late),
        ),
    )
    for blob_id, state, due in session.execute(query):
        detail = f"{state} without a reference, to go at {due}"
        yield Breach("nothing unreferenced outlives the grace", f"blob {blob_id}", detail)


def _undead(session: Session) -> Iterator[Breach]:
    query = (
        sa.select(Blob.id, Location.id, Location.state)
        .join(Location, Location.blob_id == Blob.id)
        .where(Blob.state == BlobState.DELETED, Location.state != LocationState.TOMBSTONE)
    )
    for blob_id, location_id, state in session.execute(query):
        detail = f"deleted, but location {location_id} is {state}"
        yield Breach("deleted content has no place", f"blob {blob_id}", detail)


def _live_twice(session: Session) -> Iterator[Breach]:
    query = (
        sa.select(Blob.tenant_id, Blob.sha256, sa.func.count())
        .where(Blob.state.in_((BlobState.LIVE, BlobState.CONDEMNED)))
        .group_by(Blob.tenant_id, Blob.sha256, Blob.size_bytes)
        .having(sa.func.count() > 1)
    )
    for tenant, digest, count in session.execute(query):
        subject = f"content {digest} of {tenant}"
        yield Breach("a content is live at most once", subject, f"live {count} times")


def _keys_twice(session: Session) -> Iterator[Breach]:
    query = (
        sa.select(Location.channel, Location.key, sa.func.count())
        .group_by(Location.channel, Location.key)
        .having(sa.func.count() > 1)
    )
    for channel, key, count in session.execute(query):
        yield Breach("a physical key is used once", f"{channel}:{key}", f"{count} locations")
