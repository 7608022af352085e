"""`blox doctor` says which reviewers are named and not here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from services.cli.commands.doctor_reviews import look_at_reviewers
from services.review.sandbox import SandboxLimits
from shared.catalog.secret_box import SecretBox
from shared.runtime.assembly import assemble
from shared.runtime.metrics import Metrics
from shared.runtime.settings import ReviewSettings, Settings, StagingSettings
from tests.integration.handlers.reviewing_again import (
    GOOD,
    NEW,
    OLD,
    change,
    start,
    stored,
    work,
)
from tests.support.handlers import Stand

pytestmark = pytest.mark.databases("sqlite")


def look(url: str, root: Path, review: ReviewSettings) -> dict[str, tuple[str, str]]:
    settings = Settings.model_validate(
        {
            "database_url": url,
            "redis_url": "redis://127.0.0.1:1",
            "secret_key": SecretBox.generate_key(),
            "staging": StagingSettings(path=root / "staging"),
            "review": review,
        }
    )
    parts = assemble(settings, Metrics("doctor"), threads=1)
    try:
        return {what: (verdict, detail) for verdict, what, detail in look_at_reviewers(parts)}
    finally:
        parts.outbox.close(1.0)
        parts.engine.dispose()


def test_reviewer_that_is_named_and_not_here_is_a_fault(
    stand: Stand, blox_url: str, tmp_path: Path
) -> None:
    assert look(blox_url, tmp_path, ReviewSettings()) == {}
    stand.bucket(reviewers=[{"kind": "clamav", "name": "virus"}])
    verdict, detail = look(blox_url, tmp_path, ReviewSettings())["reviewer clamav"]
    assert verdict == "fault"
    assert "BLOX_REVIEW__CLAMD" in detail
    assert "acme/photos" in detail
    here = look(blox_url, tmp_path, ReviewSettings(clamd="tcp://127.0.0.1:3310"))
    assert here["reviewer clamav"][0] == "ok"


def test_webhooks_without_an_address_of_ours_are_a_warning(
    stand: Stand, blox_url: str, tmp_path: Path
) -> None:
    spec = {"kind": "webhook", "name": "far", "reviewer": "elsewhere"}
    stand.bucket(reviewers=[spec])
    assert look(blox_url, tmp_path, ReviewSettings())["reviewer webhook"][0] == "warning"
    told = ReviewSettings(callback_url="https://blox.example")
    assert look(blox_url, tmp_path, told)["reviewer webhook"][0] == "ok"


def test_content_that_reviewers_could_not_judge_is_a_warning(
    stand: Stand, blox_url: str, tmp_path: Path
) -> None:
    stored(stand, stand.bucket(**OLD), "k", GOOD)
    able = stand.review
    stand.review = replace(able, limits=SandboxLimits(seconds=0.0))
    change(stand, **NEW)
    work(stand)
    found = look(blox_url, tmp_path, ReviewSettings())
    assert set(found) == {"re-review acme/photos"}
    assert "1 versions are readable" in found["re-review acme/photos"][1]
    stand.review = able
    start(stand)
    work(stand)
    assert look(blox_url, tmp_path, ReviewSettings()) == {}
