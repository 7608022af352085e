"""Damages of copies on other channels that `blox check` must see."""

from __future__ import annotations

from typing import Any

from shared.catalog.models import Replica, ReplicaRule, Version
from tests.acceptance.damages import PAST, Damage
from tests.acceptance.still import Still


def _replica(still: Still, **values: Any) -> None:
    blob_id = still.one(Version.blob_id, Version.id == still.cast.kept)
    still.add(
        Replica,
        tenant_id="default",
        blob_id=blob_id,
        channel="elsewhere",
        created_at=PAST,
        updated_at=PAST,
        **values,
    )


def _nowhere(still: Still) -> None:
    _replica(still, state="completed")


def _forgotten(still: Still) -> None:
    _replica(still, state="pending", task_id=999_999)


def _unplanned(still: Still) -> None:
    still.add(
        ReplicaRule,
        tenant_id="default",
        bucket_id=still.one(Version.bucket_id, Version.id == still.cast.kept),
        channel="elsewhere",
        state="active",
        missing=0,
        turned_at=PAST,
        passed_at=PAST,
        created_at=PAST,
        changed_at=PAST,
    )


REPLICA_DAMAGES = (
    Damage("copy nowhere", _nowhere, "completed replicas have their copy", "on elsewhere"),
    Damage("copy forgotten", _forgotten, "unfinished rows have their task", "pending, but its"),
    Damage("copy unplanned", _unplanned, "copies that rules ask for are planned", "no replica"),
)
