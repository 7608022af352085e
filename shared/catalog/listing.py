"""Listing a bucket: one walk over the index of (bucket, key), in the order of the keys' bytes.

With a delimiter, keys that share a prefix up to it are one entry, and the walk jumps over them.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import ObjectRow, by_index
from shared.core.errors import InvalidError

MAX_LIMIT = 1000
_Row = sa.Row[Any]

#: Rows that the first look of a walk with a delimiter reads: most of them may share one prefix.
_FIRST_LOOK = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One key and what its row tells of the version that a GET serves."""

    key: str
    size: int
    etag: str
    content_type: str
    modified_at: dt.datetime
    version_id: int


@dataclass(slots=True)
class Listing:
    """A page. Items and prefixes are each in byte order; `next_cursor` is None on the last one."""

    items: list[Listed] = field(default_factory=list)
    prefixes: list[str] = field(default_factory=list)
    next_cursor: str | None = None

    @property
    def count(self) -> int:
        """Entries on this page; a prefix is one."""
        return len(self.items) + len(self.prefixes)


def list_objects(
    session: Session,
    bucket_id: int,
    *,
    prefix: str = "",
    delimiter: str = "",
    cursor: str | None = None,
    limit: int = MAX_LIMIT,
) -> Listing:
    """Return a page of the keys that begin with `prefix` and can be read, in byte order.

    Keys that hold `delimiter` after the prefix are folded into common prefixes. A page has at most
    `limit` entries (1 to 1,000). Raises InvalidError (`cursor_invalid`) for a cursor that no
    listing gave.
    """
    limit = max(1, min(limit, MAX_LIMIT))
    try:
        wanted, mark = prefix.encode(), delimiter.encode()
    except UnicodeEncodeError as error:
        raise InvalidError(
            "prefix or delimiter is not valid Unicode", code="prefix_invalid"
        ) from error
    start = max(wanted, _decode(cursor)) if cursor else wanted
    page = Listing()
    for row, common in _walk(session, bucket_id, start, wanted, mark, limit):
        if page.count == limit:
            page.next_cursor = _encode(row.key.encode() if common is None else common)
            break
        if common is None:
            page.items.append(
                Listed(
                    key=row.key,
                    size=row.size,
                    etag=row.etag,
                    content_type=row.content_type,
                    modified_at=row.modified_at,
                    version_id=row.version_id,
                )
            )
        else:
            page.prefixes.append(common.decode())
    return page


def successor(prefix: bytes) -> bytes | None:
    """Return the first bytes after everything that begins with `prefix`, None if nothing is."""
    stripped = prefix.rstrip(b"\xff")
    if not stripped:
        return None
    return stripped[:-1] + bytes([stripped[-1] + 1])


def under(
    column: sa.ColumnExpressionArgument[str], prefix: str, *, after: str | None = None
) -> list[sa.ColumnElement[bool]]:
    """Return the conditions for keys that begin with `prefix` and come behind `after`, as bytes."""
    key, start = sa.type_coerce(column, sa.LargeBinary), prefix.encode()
    end = successor(start)
    conditions = [key >= start if after is None else key > after.encode()]
    return conditions if end is None else [*conditions, key < end]


def _walk(
    session: Session, bucket_id: int, start: bytes, prefix: bytes, delimiter: bytes, limit: int
) -> Iterator[tuple[_Row, bytes | None]]:
    """Yield (row, common prefix or None), each common prefix once."""
    position: bytes | None = start
    end = successor(prefix)
    look = min(limit + 1, _FIRST_LOOK) if delimiter else limit + 1
    while position is not None and (end is None or position < end):
        rows = _look(session, bucket_id, position, end, look)
        entries = 0
        for row in rows:
            key = row.key.encode()
            if position is None or key < position:
                continue  # jumped over
            common = _common(key, prefix, delimiter)
            entries += 1
            yield row, common
            position = key + b"\0" if common is None else successor(common)
        if len(rows) < look:
            return
        # Many rows under few prefixes: smaller looks waste less. Otherwise read on in larger ones.
        look = min(limit + 1, look * 2) if entries * 2 > len(rows) else max(2, look // 2)


def _look(
    session: Session, bucket_id: int, position: bytes, end: bytes | None, look: int
) -> Sequence[_Row]:
    key = sa.type_coerce(ObjectRow.key, sa.LargeBinary)
    statement = sa.select(
        ObjectRow.key.label("key"),
        ObjectRow.size_bytes.label("size"),
        ObjectRow.etag,
        ObjectRow.content_type,
        ObjectRow.modified_at,
        ObjectRow.served_version_id.label("version_id"),
    ).where(ObjectRow.bucket_id == bucket_id, ObjectRow.is_listed == 1, key >= position)
    statement = by_index(statement, ObjectRow, "ix_objects_listing")
    if end is not None:
        statement = statement.where(key < end)
    rows: Sequence[Any] = session.execute(statement.order_by(ObjectRow.key).limit(look)).all()
    return rows


def _common(key: bytes, prefix: bytes, delimiter: bytes) -> bytes | None:
    if not delimiter:
        return None
    at = key.find(delimiter, len(prefix))
    return None if at < 0 else key[: at + len(delimiter)]


def _encode(position: bytes) -> str:
    return base64.urlsafe_b64encode(position).decode().rstrip("=")


def _decode(cursor: str) -> bytes:
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        return base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True)
    except (UnicodeEncodeError, binascii.Error, ValueError) as error:
        raise InvalidError("the cursor is not one of ours", code="cursor_invalid") from error
