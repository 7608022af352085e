"""What the rows say that is there, and what is there: on channels and in staging."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.backups.contents import READABLE
from shared.catalog.channel_catalogue import ChannelCatalogue
from shared.catalog.invariants.leftovers import (
    Ages,
    unfinished_bodies,
    unnamed_files,
    unnamed_keys,
    unneeded_uploads,
)
from shared.catalog.models import (
    BackupContent,
    Blob,
    Location,
    LocationState,
    SessionState,
    UploadPart,
    UploadSession,
    Version,
    VersionState,
)
from shared.core.clock import Deadline
from shared.core.errors import BloxError
from shared.outbox.breach import Breach
from shared.storage.channel import Channel, Found
from shared.storage.staging import Staging

_PAGE = 500
#: Seconds that one call to a channel may take; listings and read-backs get this per call.
_CALL_SECONDS = 300.0
#: Versions whose bytes lie in staging.
_IN_STAGING = (VersionState.PENDING, VersionState.REVIEWING, VersionState.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """Where bytes lie. `is_deep` reads every copy back and compares its SHA-256."""

    channels: ChannelCatalogue
    staging: Staging
    ages: Ages
    is_deep: bool = False


class _Place(Protocol):
    """What a channel and staging have in common."""

    def head(self, key: str, *, deadline: Deadline) -> Found | None: ...

    def get(self, key: str, *, deadline: Deadline) -> AbstractContextManager[Iterator[bytes]]: ...


def byte_breaches(session: Session, stores: Stores) -> Iterator[Breach]:
    """Yield copies and acknowledged bytes that are not there, and bytes that no row names."""
    opened: dict[str, Channel] = {}
    for name in stores.channels.names():
        try:
            channel = stores.channels.get(name)
            yield from unnamed_keys(session, channel, stores.ages)
            yield from unneeded_uploads(session, channel, stores.ages)
            opened[name] = channel
        except BloxError as error:
            yield Breach("channels answer", f"channel {name}", str(error))
    yield from _stored(session, opened, stores)
    yield from _held(session, opened, stores)
    yield from _acknowledged(session, stores)
    yield from _parts(session, stores)
    yield from unnamed_files(session, stores.staging, stores.ages)
    yield from unfinished_bodies(session, stores.staging, stores.ages)


def _stored(session: Session, opened: dict[str, Channel], stores: Stores) -> Iterator[Breach]:
    last, known = 0, set(stores.channels.names())
    while True:
        query = (
            sa.select(Location.id, Location.channel, Location.key, Blob.size_bytes, Blob.sha256)
            .join(Blob, Blob.id == Location.blob_id)
            .where(Location.state == LocationState.STORED, Location.id > last)
            .order_by(Location.id)
            .limit(_PAGE)
        )
        page = session.execute(query).all()
        session.rollback()
        for location_id, name, key, size, digest in page:
            if name in opened:
                fault = _fault(opened[name], key, size, digest, is_deep=stores.is_deep)
            else:
                # Of a channel that does not answer nothing is known, and that is said once.
                fault = "" if name in known else "there is no such channel"
            if fault:
                subject = f"location {location_id} ({name}:{key})"
                yield Breach("stored bytes are there", subject, fault)
        if len(page) < _PAGE:
            return
        last = page[-1][0]


def _held(session: Session, opened: dict[str, Channel], stores: Stores) -> Iterator[Breach]:
    last = 0
    while True:
        query = (
            sa.select(
                BackupContent.id,
                BackupContent.target,
                BackupContent.key,
                BackupContent.size_bytes,
                BackupContent.sha256,
            )
            .where(BackupContent.state.in_(READABLE), BackupContent.id > last)
            .order_by(BackupContent.id)
            .limit(_PAGE)
        )
        page = session.execute(query).all()
        session.rollback()
        for content_id, name, key, size, digest in page:
            if name not in opened:
                continue  # That a channel does not answer, or is gone, is said once.
            fault = _fault(opened[name], key, size, digest, is_deep=stores.is_deep)
            if fault:
                subject = f"backup content {content_id} ({name}:{key})"
                yield Breach("backed-up bytes are there", subject, fault)
        if len(page) < _PAGE:
            return
        last = page[-1][0]


def _acknowledged(session: Session, stores: Stores) -> Iterator[Breach]:
    last = 0
    columns = (Version.id, Version.staging_key, Version.size_bytes, Version.sha256)
    while True:
        query = (
            sa.select(*columns)
            .where(Version.state.in_(_IN_STAGING), Version.id > last)
            .order_by(Version.id)
            .limit(_PAGE)
        )
        page = session.execute(query).all()
        session.rollback()
        for version_id, key, size, digest in page:
            if key is None:
                fault = "no staging file is named"
            else:
                fault = _fault(stores.staging, key, size, digest, is_deep=stores.is_deep)
            if fault:
                yield Breach("acknowledged bytes are there", f"version {version_id}", fault)
        if len(page) < _PAGE:
            return
        last = page[-1][0]


def _parts(session: Session, stores: Stores) -> Iterator[Breach]:
    """Look for the acknowledged parts of uploads that are not on their way out."""
    last = (0, 0)
    columns = (
        UploadSession.public_id,
        UploadPart.session_id,
        UploadPart.number,
        UploadPart.staging_key,
        UploadPart.size_bytes,
        UploadPart.sha256,
    )
    while True:
        query = (
            sa.select(*columns)
            .join(UploadSession, UploadSession.id == UploadPart.session_id)
            .where(
                UploadSession.state != SessionState.ABORTED,
                sa.or_(
                    UploadPart.session_id > last[0],
                    sa.and_(UploadPart.session_id == last[0], UploadPart.number > last[1]),
                ),
            )
            .order_by(UploadPart.session_id, UploadPart.number)
            .limit(_PAGE)
        )
        page = session.execute(query).all()
        session.rollback()
        for upload, _, number, key, size, digest in page:
            fault = _fault(stores.staging, key, size, digest, is_deep=stores.is_deep)
            if fault:
                subject = f"upload {upload} part {number}"
                yield Breach("acknowledged bytes are there", subject, fault)
        if len(page) < _PAGE:
            return
        last = (page[-1].session_id, page[-1].number)


def _fault(place: _Place, key: str, size: int, digest: str, *, is_deep: bool) -> str:
    try:
        found = place.head(key, deadline=Deadline(_CALL_SECONDS))
        if found is None:
            return "the key is not there"
        if found.size != size:
            return f"{found.size} bytes instead of {size}"
        if is_deep:
            read = hashlib.sha256()
            with place.get(key, deadline=Deadline(_CALL_SECONDS)) as chunks:
                for chunk in chunks:
                    read.update(chunk)
            if read.hexdigest() != digest:
                return f"SHA-256 {read.hexdigest()} instead of {digest}"
    except BloxError as error:
        return str(error)
    return ""
