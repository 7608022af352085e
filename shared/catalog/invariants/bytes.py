"""Invariants between the catalogue's rows and the bytes on channels and in staging."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.channel_catalogue import ChannelCatalogue
from shared.catalog.models import Blob, Location, LocationState
from shared.catalog.sweeps.staging import named
from shared.core.clock import Deadline, utc_now
from shared.core.errors import BloxError
from shared.outbox.invariants import Breach
from shared.storage.channel import Channel
from shared.storage.staging import Staging

_PAGE = 500
#: Seconds that one call to a channel may take; listings and read-backs get this per page.
_CALL_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Stores:
    """Where bytes lie.

    Keys younger than `min_age_seconds` may be on their way; files in staging that nothing names
    wait `staging_age_seconds` for their clean-up.
    """

    channels: ChannelCatalogue
    staging: Staging
    names: tuple[str, ...]
    min_age_seconds: float
    staging_age_seconds: float
    is_deep: bool = False


def byte_breaches(session: Session, stores: Stores) -> Iterator[Breach]:
    """Yield stored copies that are not there, and bytes that no row names.

    `is_deep` reads every stored copy back and compares its SHA-256.
    """
    opened: dict[str, Channel] = {}
    for name in stores.names:
        try:
            opened[name] = stores.channels.get(name)
            yield from _unnamed_keys(session, opened[name], stores)
            yield from _unnamed_uploads(session, opened[name], stores)
        except BloxError as error:
            yield Breach("channels answer", f"channel {name}", str(error))
    yield from _stored(session, opened, stores)
    yield from _staging(session, stores)


def _stored(session: Session, opened: dict[str, Channel], stores: Stores) -> Iterator[Breach]:
    last = 0
    while True:
        query = (
            sa.select(Location.id, Location.channel, Location.key, Blob.size_bytes, Blob.sha256)
            .join(Blob, Blob.id == Location.blob_id)
            .where(Location.state == LocationState.STORED, Location.id > last)
            .order_by(Location.id)
            .limit(_PAGE)
        )
        page = session.execute(query).all()
        for location_id, channel, key, size, digest in page:
            if channel not in opened:
                continue
            fault = _fault(opened[channel], key, size, digest, is_deep=stores.is_deep)
            if fault:
                subject = f"location {location_id} ({channel}:{key})"
                yield Breach("stored bytes are there", subject, fault)
        if len(page) < _PAGE:
            return
        last = page[-1][0]


def _fault(channel: Channel, key: str, size: int, digest: str, *, is_deep: bool) -> str:
    try:
        found = channel.head(key, deadline=Deadline(_CALL_SECONDS))
        if found is None:
            return "the key is not there"
        if found.size != size:
            return f"{found.size} bytes instead of {size}"
        if is_deep:
            read = hashlib.sha256()
            with channel.get(key, deadline=Deadline(_CALL_SECONDS)) as chunks:
                for chunk in chunks:
                    read.update(chunk)
            if read.hexdigest() != digest:
                return f"SHA-256 {read.hexdigest()} instead of {digest}"
    except BloxError as error:
        return str(error)
    return ""


def _unnamed_keys(session: Session, channel: Channel, stores: Stores) -> Iterator[Breach]:
    old = utc_now() - dt.timedelta(seconds=stores.min_age_seconds)
    keys = (
        entry.key
        for entry in channel.list(deadline=Deadline(_CALL_SECONDS))
        if _naive(entry.modified_at) <= old
    )
    for page in _pages(keys):
        query = sa.select(Location.key).where(
            Location.channel == channel.name,
            Location.key.in_(page),
            Location.state != LocationState.TOMBSTONE,
        )
        known = set(session.scalars(query))
        for key in page:
            if key not in known:
                detail = "no location names it"
                yield Breach("every key is named", f"{channel.name}:{key}", detail)


def _unnamed_uploads(session: Session, channel: Channel, stores: Stores) -> Iterator[Breach]:
    old = utc_now() - dt.timedelta(seconds=stores.min_age_seconds)
    uploads = {
        upload.upload_id: upload.key
        for upload in channel.list_uploads(deadline=Deadline(_CALL_SECONDS))
        if _naive(upload.started_at) <= old
    }
    for page in _pages(uploads):
        query = sa.select(Location.upload_id).where(
            Location.channel == channel.name, Location.upload_id.in_(page)
        )
        known = set(session.scalars(query))
        for upload_id in page:
            if upload_id not in known:
                subject = f"upload {upload_id} of {channel.name}:{uploads[upload_id]}"
                yield Breach("every open upload is named", subject, "no location names it")


def _staging(session: Session, stores: Stores) -> Iterator[Breach]:
    old = stores.staging.old(
        minimum_age_seconds=stores.staging_age_seconds, deadline=Deadline(_CALL_SECONDS)
    )
    for page in _pages(entry.key for entry in old):
        known = named(session, page)
        for key in page:
            if key not in known:
                detail = "no version names it"
                yield Breach("every staging file is named", f"staging:{key}", detail)


def _pages(values: Iterable[str]) -> Iterator[list[str]]:
    iterator = iter(values)
    while page := list(islice(iterator, _PAGE)):
        yield page


def _naive(moment: dt.datetime) -> dt.datetime:
    return moment if moment.tzinfo is None else moment.astimezone(dt.UTC).replace(tzinfo=None)
