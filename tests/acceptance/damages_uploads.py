"""Damages of resumable uploads that `blox check` must see."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from shared.catalog.models import UploadPart, UploadSession
from shared.outbox.schema import tasks
from tests.acceptance.damages import PAST, Damage
from tests.acceptance.still import Still


def _id(still: Still, name: str) -> int:
    return int(still.one(UploadSession.id, UploadSession.key == name))


def _change(still: Still, name: str, **values: Any) -> None:
    still.change(UploadSession, _id(still, name), **values)


def _staging_key(still: Still, name: str) -> str:
    where = UploadPart.session_id == _id(still, name)
    return str(still.one(UploadPart.staging_key, where))


def _task_gone(still: Still) -> None:
    _change(still, "parts/waiting", task_id=999_999)


def _task_ended(still: Still) -> None:
    task_id = still.one(UploadSession.task_id, UploadSession.key == "parts/waiting")
    still.change(tasks, task_id, state="failed", finished_at=PAST)


def _works_for_nothing(still: Still) -> None:
    result = sa.type_coerce({"code": "x"}, sa.JSON)
    _change(still, "parts/waiting", state="failed", result=result, expires_at=PAST)


def _no_result(still: Still) -> None:
    _change(still, "parts/done", result=None)


def _other_version(still: Still) -> None:
    _change(still, "parts/done", version_id=still.cast.superseded)


def _renamed_version(still: Still) -> None:
    _change(still, "parts/done", object_key="parts/elsewhere")


def _other_content(still: Still) -> None:
    _change(still, "parts/done", size_bytes=7)


def _early_result(still: Still) -> None:
    _change(still, "parts/open", version_id=999_999)


def _stray_part(still: Still) -> None:
    still.drop(UploadSession, UploadSession.id == _id(still, "parts/open"))


def _miscounted(still: Still) -> None:
    _change(still, "parts/open", received_bytes=1)


def _part_gone(still: Still) -> None:
    key = _staging_key(still, "parts/open")
    (path,) = (path for path in still.staged_files() if str(path).endswith(key))
    path.unlink()


def _part_unnamed(still: Still) -> None:
    still.drop(UploadPart, UploadPart.staging_key == _staging_key(still, "parts/open"))


def _overdue(still: Still) -> None:
    _change(still, "parts/open", expires_at=PAST)


_RESULT = "an operation has one result"
_PARTS = "parts belong to an upload"

UPLOAD_DAMAGES = (
    Damage("assembly gone", _task_gone, "unfinished rows have their task", "completing, but its"),
    Damage("assembly over", _task_ended, "unfinished rows have their task", "is failed"),
    Damage(
        "assembly idle", _works_for_nothing, "unfinished tasks have their row", "upload.assemble is"
    ),
    Damage("no result", _no_result, _RESULT, "done, but it has no result"),
    Damage("other result", _other_version, _RESULT, "its result names version"),
    Damage("renamed", _renamed_version, _RESULT, "has another name"),
    Damage("other whole", _other_content, _RESULT, "is not what was declared"),
    Damage("early result", _early_result, _RESULT, "open, but it has a result"),
    Damage("stray part", _stray_part, _PARTS, "it is not there"),
    Damage("miscounted", _miscounted, _PARTS, "2 parts of 1 bytes, but there are 2 of 500"),
    Damage("part gone", _part_gone, "acknowledged bytes are there", "the key is not there"),
    Damage("part unnamed", _part_unnamed, "every staging file is named", "no version"),
    Damage("overdue upload", _overdue, "uploads that are over go", "open, over since 2020"),
)
