"""Damages of backups, restores and losses that `blox check` must see."""

from __future__ import annotations

from typing import Any

from shared.catalog.models import (
    BackupContent,
    BackupItem,
    BackupRun,
    BlobRef,
    Loss,
    Restore,
    Version,
)
from shared.storage.keys import fresh_key
from tests.acceptance.damages import PAST, Damage
from tests.acceptance.still import Still

_RUN = 700_001


def _blob(still: Still) -> int:
    return int(still.one(Version.blob_id, Version.id == still.cast.kept))


def _bucket(still: Still) -> int:
    return int(still.one(Version.bucket_id, Version.id == still.cast.kept))


def _run(still: Still, state: str, **values: Any) -> None:
    facts = {"id": _RUN, "slot": "planted", "task_id": still.cast.waiting_task, **values}
    still.add(
        BackupRun,
        tenant_id="default",
        bucket_id=_bucket(still),
        target="main",
        state=state,
        created_at=PAST,
        **facts,
    )


def _item(still: Still, state: str, **values: Any) -> None:
    still.add(
        BackupItem,
        run_id=_RUN,
        blob_id=_blob(still),
        state=state,
        size_bytes=3000,
        task_id=still.cast.waiting_task,
        created_at=PAST,
        **values,
    )


def _content(still: Still, state: str, **values: Any) -> None:
    facts = {"task_id": still.cast.upload_task, **values}
    still.add(
        BackupContent,
        target="main",
        tenant_id="default",
        kind="content",
        sha256="0" * 64,
        size_bytes=3000,
        physical_key=fresh_key("default"),
        state=state,
        fence=1,
        created_at=PAST,
        **facts,
    )


def _free(still: Still) -> None:
    _run(still, "open")
    _item(still, "open")


def _stray_pin(still: Still) -> None:
    still.add(BlobRef, blob_id=_blob(still), holder_kind="backup", holder_id=_RUN, created_at=PAST)


def _long_pin(still: Still) -> None:
    _run(still, "open", pins_until=PAST)
    _stray_pin(still)


def _nameless(still: Still) -> None:
    _run(still, "complete", manifest_id=999_999, manifest_sha256="0" * 64)


def _needy(still: Still) -> None:
    _run(still, "open")
    _item(still, "done", content_id=999_999)


def _gone(still: Still) -> None:
    _content(still, "stored")


def _run_alone(still: Still) -> None:
    _run(still, "open", task_id=still.cast.upload_task)


def _loss_alone(still: Still) -> None:
    still.add(
        Loss,
        tenant_id="default",
        blob_id=_blob(still),
        location_id=still.location(still.cast.kept).id,
        channel="main",
        state="open",
        found_by="read",
        task_id=still.cast.upload_task,
        created_at=PAST,
    )


def _restore_alone(still: Still) -> None:
    still.add(
        Restore,
        tenant_id="default",
        bucket_id=_bucket(still),
        mode="keys",
        prefix=b"",
        state="open",
        task_id=still.cast.upload_task,
        created_at=PAST,
    )


def _left(still: Still) -> None:
    _content(still, "intent")


BACKUP_DAMAGES = (
    Damage("backup unpinned", _free, "what is to be backed up is pinned", "is free to go"),
    Damage("pin of nobody", _stray_pin, "references have their holder", "of backup run"),
    Damage("pin of a day", _long_pin, "references have their holder", "(open)"),
    Damage("backup nameless", _nameless, "backups have what they name", "its manifest is"),
    Damage("backup needy", _needy, "backups have what they name", "names content"),
    Damage("backup gone", _gone, "backed-up bytes are there", "not there"),
    Damage("backup alone", _run_alone, "unfinished rows have their task", "open, but its task"),
    Damage("loss alone", _loss_alone, "unfinished rows have their task", "open, but its task"),
    Damage(
        "restore alone", _restore_alone, "unfinished rows have their task", "open, but its task"
    ),
    Damage("backup intent", _left, "unfinished rows have their task", "no sweep took it"),
)
