"""What is there although no row names it: keys and open uploads on channels, files in staging."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from sqlalchemy.orm import Session

from shared.catalog.sweeps.bodies import bodies_over
from shared.catalog.sweeps.named_keys import keys_in_use, named_keys
from shared.catalog.sweeps.staging import named
from shared.core.clock import Deadline, utc_now
from shared.core.errors import BloxError
from shared.outbox.breach import Breach
from shared.storage.channel import Channel
from shared.storage.staging import Staging

_PAGE = 500
#: Seconds that one listing may take.
_LISTING_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ages:
    """How old, in seconds, something must be before it counts as left behind.

    `key`: a key on a channel that no row names. `upload`: an open upload that nothing needs.
    `tombstone`: a removed location, which may name an upload until then. `staging`: an unnamed file
    in staging.
    """

    key: float
    upload: float
    tombstone: float
    staging: float


def unnamed_keys(session: Session, channel: Channel, ages: Ages) -> Iterator[Breach]:
    """Yield keys of a channel that no row names. Raises what the channel does."""
    old = _before(ages.key)
    keys = (
        entry.key
        for entry in channel.list(deadline=Deadline(_LISTING_SECONDS))
        if _naive(entry.modified_at) <= old
    )
    for page in _pages(keys):
        known = named_keys(session, channel.name, page)
        session.rollback()
        for key in page:
            if key not in known:
                detail = "no location names it"
                yield Breach("every key is named", f"{channel.name}:{key}", detail)


def unneeded_uploads(session: Session, channel: Channel, ages: Ages) -> Iterator[Breach]:
    """Yield open multipart uploads that nobody goes on with. Raises what the channel does."""
    old = _before(ages.upload)
    uploads = {
        upload.upload_id: upload.key
        for upload in channel.list_uploads(deadline=Deadline(_LISTING_SECONDS))
        if _naive(upload.started_at) <= old
    }
    for page in _pages(uploads):
        needed = keys_in_use(
            session,
            channel.name,
            [uploads[one] for one in page],
            ended_after=_before(ages.upload),
            buried_after=_before(ages.tombstone),
        )
        session.rollback()
        for upload_id in page:
            if uploads[upload_id] not in needed:
                subject = f"upload {upload_id} of {channel.name}:{uploads[upload_id]}"
                yield Breach("every open upload is needed", subject, "no execution goes on with it")


def unnamed_files(session: Session, staging: Staging, ages: Ages) -> Iterator[Breach]:
    """Yield files in staging that no version needs."""
    old = staging.old(minimum_age_seconds=ages.staging, deadline=Deadline(_LISTING_SECONDS))
    try:
        for page in _pages(entry.key for entry in old):
            known = named(session, page)
            session.rollback()
            for key in page:
                if key not in known:
                    detail = "no version names it"
                    yield Breach("every staging file is named", f"staging:{key}", detail)
    except BloxError as error:
        yield Breach("staging answers", "staging", str(error))


def unfinished_bodies(session: Session, staging: Staging, ages: Ages) -> Iterator[Breach]:
    """Yield multipart uploads in staging that no process goes on with."""
    try:
        uploads = list(staging.open_uploads(deadline=Deadline(_LISTING_SECONDS)))
    except BloxError as error:
        yield Breach("staging answers", "staging", str(error))
        return
    over = bodies_over(session, staging, uploads, age_seconds=ages.upload)
    session.rollback()
    for upload in over:
        subject = f"upload {upload.upload_id} of staging:{upload.key}"
        yield Breach("every open upload is needed", subject, "no process goes on with it")


def _pages(values: Iterable[str]) -> Iterator[list[str]]:
    iterator = iter(values)
    while page := list(islice(iterator, _PAGE)):
        yield page


def _before(age_seconds: float) -> dt.datetime:
    return utc_now() - dt.timedelta(seconds=age_seconds)


def _naive(moment: dt.datetime) -> dt.datetime:
    return moment if moment.tzinfo is None else moment.astimezone(dt.UTC).replace(tzinfo=None)
