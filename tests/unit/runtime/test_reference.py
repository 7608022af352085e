"""The page of all settings is what the code says."""

from __future__ import annotations

from pathlib import Path

from shared.runtime.reference import render

PAGE = Path(__file__).resolve().parents[3] / "docs" / "settings.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == render(), (
        "run: python -m shared.runtime.reference > docs/settings.md"
    )


def test_every_group_and_the_outbox_are_on_it() -> None:
    text = render()
    for name in (
        "BLOX_DATABASE_URL",
        "BLOX_WORKER__THREADS",
        "BLOX_OUTBOX__LEASE_SECONDS",
        "BLOX_CHANNELS__<NAME>__ROOT",
    ):
        assert f"`{name}`" in text
