"""Damages of pulls from origins that `blox check` must see."""

from __future__ import annotations

from typing import Any

from shared.catalog.models import OriginPull, OriginSegment, Version
from tests.acceptance.damages import PAST, Damage
from tests.acceptance.still import Still


def _pull(still: Still, **values: Any) -> None:
    bucket_id = still.one(Version.bucket_id, Version.id == still.cast.kept)
    facts = {"object_key": b"pulled", "rule": "r", "generation": 0, "created_at": PAST, **values}
    still.add(OriginPull, tenant_id="default", bucket_id=bucket_id, **facts)


def _forgotten(still: Still) -> None:
    _pull(still, state="open", task_id=999_999)


def _twice(still: Still) -> None:
    _pull(still, state="open")
    _pull(still, state="open")


def _overwriting(still: Still) -> None:
    generation = still.one(Version.generation, Version.id == still.cast.kept)
    _pull(still, state="stored", version_id=still.cast.kept, generation=generation + 4)


def _inside(still: Still) -> None:
    _pull(still, state="lost", hops={"hops": [["a.example", 80, "169.254.169.254"]]})


def _stretch(still: Still) -> None:
    still.add(
        OriginSegment,
        pull_id=999_999,
        number=0,
        staging_key="live/00/none",
        size_bytes=1,
        created_at=PAST,
    )


ORIGIN_DAMAGES = (
    Damage("pull forgotten", _forgotten, "unfinished rows have their task", "open, but its task"),
    Damage(
        "pull twice",
        _twice,
        "a key is pulled once at a time",
        "2 pulls",
        index="uq_origin_pulls_open",
    ),
    Damage("pull overwrote", _overwriting, "a pull fills an absent key only", "asked for at"),
    Damage("pull inside", _inside, "pulls go to allowed addresses", "169.254.169.254"),
    Damage("stretch left", _stretch, "stretches belong to an open pull", "not there"),
)
