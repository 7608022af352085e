"""Damages of holds, removals by prefix and copies that `blox check` must see."""

from __future__ import annotations

from typing import Any

from shared.catalog.models import BlobRef, Copy, Hold, Removal, Version
from tests.acceptance.damages import PAST, Damage
from tests.acceptance.still import Still

_ROWS = "unfinished rows have their task"
_HELD = "what is held is there"


def _of(still: Still, column: Any) -> Any:
    return still.one(column, Version.id == still.cast.kept)


def _hold_without_reference(still: Still) -> None:
    still.add(
        Hold,
        tenant_id="default",
        bucket_id=_of(still, Version.bucket_id),
        object_id=_of(still, Version.object_id),
        version_id=still.cast.kept,
        blob_id=_of(still, Version.blob_id),
        state="active",
        reason="r",
        created_at=PAST,
    )


def _reference_of_no_hold(still: Still) -> None:
    still.add(
        BlobRef,
        blob_id=_of(still, Version.blob_id),
        holder_kind="hold",
        holder_id=999_999,
        created_at=PAST,
    )


def _removal_alone(still: Still) -> None:
    still.add(
        Removal,
        tenant_id="default",
        bucket_id=_of(still, Version.bucket_id),
        key_prefix="a",
        state="running",
        newest_version_id=1,
        task_id=999_999,
        created_at=PAST,
    )


def _copy_without_pin(still: Still) -> None:
    still.add(
        Copy,
        tenant_id="default",
        source_version_id=still.cast.kept,
        blob_id=_of(still, Version.blob_id),
        target_bucket_id=_of(still, Version.bucket_id),
        target_object_id=_of(still, Version.object_id),
        target_key="a",
        generation=1,
        state="pending",
        content_type="text/plain",
        user_metadata={},
        task_id=still.cast.waiting_task,
        created_at=PAST,
    )


REMOVAL_DAMAGES = (
    Damage("hold without reference", _hold_without_reference, _HELD, "or not referred to"),
    Damage("copy without pin", _copy_without_pin, _HELD, "or not referred to"),
    Damage(
        "of no hold", _reference_of_no_hold, "references have their holder", "which is not there"
    ),
    Damage("removal alone", _removal_alone, _ROWS, "running, but its task 999999 is not there"),
)
