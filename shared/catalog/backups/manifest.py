"""A run's manifest: JSON lines that name every version of the snapshot and where its bytes are.

The first line tells what it is of, the last one how many entries there must be. It needs no
database to be read.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.backups.contents import READABLE
from shared.catalog.backups.snapshot import Cursor, page_of_versions
from shared.catalog.models import (
    BackupContent,
    BackupItem,
    BackupItemState,
    BackupRun,
    Bucket,
    ObjectRow,
    Version,
)
from shared.core.errors import CorruptError

FORMAT = "cloudblox-manifest-1"
#: Bytes that are read at a time; far more than a line has: a key, its metadata, and some ids.
PIECE_BYTES = 1024 * 1024


class ManifestDamaged(CorruptError):
    """The manifest is not what was written."""

    code = "manifest_damaged"


class ContentDamaged(CorruptError):
    """The target does not have any more what a run is about to name."""

    code = "backup_content_damaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One version: what it is and where the target keeps its bytes.

    `lacks` says why the backup has no bytes of it (`lost`, `failed` or `cancelled`): then `content`
    is 0 and `target_key` empty.
    """

    key: str
    version: int
    generation: int
    blob: int
    sha256: str
    size: int
    etag: str
    content_type: str
    metadata: dict[str, str]
    modified_at: str
    content: int
    target_key: str
    lacks: str = ""

    @property
    def modified(self) -> dt.datetime:
        """When the version was written, naive UTC."""
        return dt.datetime.fromisoformat(self.modified_at)

    def line(self) -> bytes:
        """Return its line."""
        document = asdict(self)
        if not self.lacks:
            del document["lacks"]
        return encode(document)

    @classmethod
    def read(cls, document: dict[str, Any]) -> Entry:
        """Read a line. Raises ManifestDamaged."""
        try:
            return cls(**document)
        except TypeError as error:
            raise ManifestDamaged(f"a line is no entry: {error}") from error


def head_line(run: BackupRun, bucket: Bucket | None) -> bytes:
    """Return the first line."""
    moment = "" if run.snapshot_at is None else run.snapshot_at.isoformat()
    return encode(
        {
            "format": FORMAT,
            "tenant": run.tenant_id,
            "bucket": None if bucket is None else bucket.name,
            "target": run.target,
            "run": run.id,
            "slot": run.slot,
            "snapshot_version": run.snapshot_version_id,
            "snapshot_at": moment,
        }
    )


def tail_line(*, entries: int, size: int, lacking: int) -> bytes:
    """Return the last line: how many versions there are bytes of, and of how many there are not."""
    return encode({"end": FORMAT, "entries": entries, "bytes": size, "lacking": lacking})


def encode(document: dict[str, Any]) -> bytes:
    """Return one line."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """Read one line. Raises ManifestDamaged."""
    try:
        document = json.loads(line)
    except ValueError as error:
        raise ManifestDamaged(f"a line is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise ManifestDamaged("a line is no JSON object")
    return document


def whole_lines(data: bytes, *, offset: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (the offset behind it, document) for each line that ends in a piece of a manifest.

    Raises ManifestDamaged, also for a piece in which no line ends.
    """
    *lines, _rest = data.split(b"\n")
    if not lines:
        raise ManifestDamaged("a line does not end")
    for line in lines:
        offset += len(line) + 1
        yield offset, decode(line)


def page_of_entries(
    session: Session, run: BackupRun, cursor: Cursor, *, limit: int
) -> tuple[list[Entry], Cursor]:
    """Return the next entries of a run whose items have all ended.

    What could not be copied has its entry as well, without bytes. Raises ContentDamaged when the
    target has lost one of them since it was named: the next run copies it anew.
    """
    versions, following = page_of_versions(session, run, cursor, limit=limit)
    if not versions:
        return [], following
    items = {
        row.blob_id: row
        for row in session.execute(
            sa.select(
                BackupItem.blob_id,
                BackupItem.state.label("item_state"),
                BackupContent.id,
                BackupContent.key,
                BackupContent.state,
            )
            .outerjoin(BackupContent, BackupContent.id == BackupItem.content_id)
            .where(
                BackupItem.run_id == run.id,
                BackupItem.blob_id.in_(sorted({one.blob_id for one in versions})),
            )
        )
    }
    for row in items.values():
        if row.item_state == BackupItemState.DONE and row.state not in READABLE:
            raise ContentDamaged(
                "the target has lost a content that the run names", content_id=row.id
            )
    keys = {
        row.id: row.key
        for row in session.execute(
            sa.select(ObjectRow.id, ObjectRow.key).where(
                ObjectRow.id.in_(sorted({one.object_id for one in versions}))
            )
        )
    }
    entries = [
        _entry(one, keys[one.object_id], items[one.blob_id])
        for one in versions
        if one.blob_id in items and one.object_id in keys
    ]
    return entries, following


def _entry(version: Version, key: str, item: Any) -> Entry:
    is_held = item.item_state == BackupItemState.DONE
    return Entry(
        key=key,
        version=version.id,
        generation=version.generation,
        blob=version.blob_id,
        sha256=version.sha256,
        size=version.size_bytes,
        etag=version.etag,
        content_type=version.content_type,
        metadata=dict(version.user_metadata),
        modified_at=version.created_at.isoformat(),
        content=item.id if is_held else 0,
        target_key=item.key if is_held else "",
        lacks="" if is_held else str(item.item_state),
    )
