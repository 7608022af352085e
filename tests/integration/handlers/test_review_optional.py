"""ClamAV, YARA and the image reviewer: what they find, and that nothing passes without them."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from PIL import Image

from services.review import sandbox
from services.review.sandbox import SandboxLimits
from shared.catalog.models import ReviewStep
from tests.support.clamd import VIRUS, Clamd, running_clamd
from tests.support.handlers import Stand

pytestmark = pytest.mark.databases("sqlite")

GOOD = b"a harmless text"
BAD = b"a text with " + VIRUS + b" in it"
CLAMAV = {"kind": "clamav", "name": "virus"}
RULES = 'rule worm { strings: $a = "EICAR" condition: $a }'
YARA = {"kind": "yara", "name": "rules", "rules": RULES}
IMAGE = {"kind": "image", "name": "picture", "max_pixels": 10_000}


@pytest.fixture
def clamd(stand: Stand) -> Iterator[Clamd]:
    with running_clamd() as made:
        stand.review = replace(stand.review, clamd=made.address)
        yield made


def reviewed(
    stand: Stand,
    spec: dict[str, Any],
    content: bytes,
    content_type: str = "text/plain",
    **policy: Any,
) -> tuple[str, str, str]:
    """Review content by one reviewer; returns the version's state, the step's outcome and text."""
    bucket = stand.bucket(reviewers=[spec], **policy)
    put = stand.put(bucket, "a", content, content_type)
    assert stand.work(put.task_id) == "completed"
    review_id = stand.review_of(put.version_id).id
    outcome, detail = stand.look(
        lambda session: session.execute(
            sa.select(ReviewStep.outcome, ReviewStep.detail).where(
                ReviewStep.review_id == review_id, ReviewStep.step == spec["name"]
            )
        ).one()
    )
    return stand.version(put.version_id).state, outcome, detail


def png(width: int = 50, height: int = 50) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(out, "PNG")
    return out.getvalue()


# -- ClamAV ------------------------------------------------------------------------------------


def test_clamd_finds_a_virus(stand: Stand, clamd: Clamd) -> None:
    assert reviewed(stand, CLAMAV, BAD) == ("blocked", "reject", "found Eicar-Test-Signature")


def test_clamd_finds_nothing_in_a_large_file(stand: Stand, clamd: Clamd) -> None:
    content = b"harmless " * 200_000
    assert reviewed(stand, CLAMAV, content)[:2] == ("pending", "pass")
    assert clamd.scanned == [len(content)]


def test_clamd_on_a_socket(stand: Stand) -> None:
    # A socket's path is short, pytest's folders are not.
    with tempfile.TemporaryDirectory() as folder, running_clamd(Path(folder)) as clamd:
        stand.review = replace(stand.review, clamd=clamd.address)
        assert reviewed(stand, CLAMAV, BAD)[1] == "reject"


def test_clamd_that_takes_no_more_is_an_error(stand: Stand, clamd: Clamd) -> None:
    clamd.most_bytes = 1000
    state, outcome, detail = reviewed(stand, CLAMAV, b"x" * 3_000_000, fail_mode="human")
    assert (state, outcome) == ("reviewing", "error")
    assert "size limit" in detail


def test_clamd_that_is_away_is_tried_again(stand: Stand) -> None:
    stand.review = replace(stand.review, clamd="tcp://127.0.0.1:1")
    put = stand.put(stand.bucket(reviewers=[CLAMAV]), "a", GOOD)
    assert stand.work(put.task_id) == "scheduled"
    with running_clamd() as clamd:
        stand.review = replace(stand.review, clamd=clamd.address)
        assert stand.work(put.task_id) == "completed"
    assert stand.version(put.version_id).state == "pending"


@pytest.mark.parametrize("says", [b"", b"what?\0", b"stream: OKAY\0"])
def test_clamd_that_talks_nonsense_passes_nothing(stand: Stand, clamd: Clamd, says: bytes) -> None:
    clamd.says = says
    put = stand.put(stand.bucket(reviewers=[CLAMAV]), "a", GOOD)
    assert stand.work(put.task_id) == "scheduled"
    assert stand.version(put.version_id).state == "reviewing"


def test_clamd_that_hangs_ends_at_its_time(stand: Stand, clamd: Clamd) -> None:
    clamd.is_silent = True
    stand.review = replace(stand.review, limits=SandboxLimits(seconds=1.0))
    put = stand.put(stand.bucket(reviewers=[CLAMAV], type_mismatch="ignore"), "a", GOOD)
    assert stand.work(put.task_id) == "scheduled"


def test_without_clamd_nothing_passes(stand: Stand) -> None:
    state, outcome, detail = reviewed(stand, CLAMAV, GOOD)
    assert (state, outcome) == ("blocked", "error")
    assert "no clamd" in detail


# -- YARA --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "found", "expected"),
    [
        (BAD, "reject", ("blocked", "reject", "rule worm")),
        (BAD, "doubtful", ("reviewing", "doubtful", "rule worm")),
        (GOOD, "reject", ("pending", "pass", "")),
    ],
)
def test_yara(stand: Stand, content: bytes, found: str, expected: tuple[str, str, str]) -> None:
    assert reviewed(stand, {**YARA, "found": found}, content) == expected


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"max_bytes": 3}, "at most"),
        ({"rules": "rule {"}, "compiled"),
        ({"rules": 'include "/etc/hostname"'}, "compiled"),
    ],
)
def test_yara_that_cannot_judge(stand: Stand, change: dict[str, Any], says: str) -> None:
    state, outcome, detail = reviewed(stand, {**YARA, **change}, GOOD)
    assert (state, outcome) == ("blocked", "error")
    assert says in detail


# -- images ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "content_type", "expected"),
    [
        (png(), "image/png", ("pending", "pass")),
        (png(200, 200), "image/png", ("blocked", "reject")),
        (png()[:60], "image/png", ("blocked", "reject")),
        (GOOD, "text/plain", ("pending", "pass")),
        (b"<svg xmlns='x'/>", "image/svg+xml", ("pending", "pass")),
    ],
)
def test_image(stand: Stand, content: bytes, content_type: str, expected: tuple[str, str]) -> None:
    assert reviewed(stand, IMAGE, content, content_type)[:2] == expected


_PLUGIN = (
    "import importlib.metadata as m; "
    "m.entry_points = lambda **q: [type('P', (), "
    "{'load': lambda self: lambda picture: %s})()] if q['name'] == 'toy' else []; "
)


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        ("0.95", ("blocked", "reject")),
        ("0.6", ("reviewing", "doubtful")),
        ("0.1", ("pending", "pass")),
        ("7", ("blocked", "error")),
        ("1 / 0", ("blocked", "error")),
    ],
)
def test_classifier_of_an_entry_point(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, score: str, expected: tuple[str, str]
) -> None:
    monkeypatch.setattr(sandbox, "_BOOT", _PLUGIN % score + sandbox._BOOT)
    assert reviewed(stand, {**IMAGE, "classifier": "toy"}, png(), "image/png")[:2] == expected


def test_classifier_that_is_not_there_passes_nothing(stand: Stand) -> None:
    found = reviewed(stand, {**IMAGE, "classifier": "none"}, png(), "image/png")
    assert found == ("blocked", "error", "no classifier none is installed here")


@pytest.mark.parametrize(
    ("spec", "module"), [(YARA, "yara"), (IMAGE, "PIL")], ids=["yara", "image"]
)
def test_without_its_package_nothing_passes(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, spec: dict[str, Any], module: str
) -> None:
    absent = f"import sys; sys.modules[{module!r}] = None; "
    monkeypatch.setattr(sandbox, "_BOOT", absent + sandbox._BOOT)
    state, outcome, detail = reviewed(stand, spec, png(), "image/png")
    assert (state, outcome) == ("blocked", "error")
    assert "not installed" in detail


# -- order -------------------------------------------------------------------------------------


def test_reviewers_are_asked_in_the_policys_order_until_one_rejects(
    stand: Stand, clamd: Clamd
) -> None:
    bucket = stand.bucket(reviewers=[YARA, CLAMAV])
    put = stand.put(bucket, "a", BAD)
    assert stand.work(put.task_id) == "completed"
    assert stand.review_of(put.version_id).reason == "rules: rule worm"
    assert clamd.scanned == []


def test_with_a_reviewer_that_failed_the_others_still_reject(stand: Stand, clamd: Clamd) -> None:
    broken = {**YARA, "rules": "rule {"}
    bucket = stand.bucket(reviewers=[broken, CLAMAV], fail_mode="open")
    put = stand.put(bucket, "a", BAD)
    assert stand.work(put.task_id) == "completed"
    assert stand.version(put.version_id).state == "blocked"
    assert stand.review_of(put.version_id).decided_by == "reviewer"


def test_execution_that_was_cut_short_goes_on_at_the_first_step_without_an_answer(
    stand: Stand, clamd: Clamd, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = stand.put(stand.bucket(reviewers=[CLAMAV]), "a", GOOD)
    stand.review = replace(stand.review, clamd="tcp://127.0.0.1:1")
    assert stand.work(put.task_id) == "scheduled"
    steps = stand.look(
        lambda session: {row.step: row.outcome for row in session.scalars(sa.select(ReviewStep))}
    )
    assert steps == {
        "size": "pass",
        "block_list": "pass",
        "declared_type": "pass",
        "virus": "retry",
    }
    # What was answered is not asked again: the sandbox would fail now.
    monkeypatch.setattr(sandbox, "_BOOT", "raise SystemExit(1)")
    stand.review = replace(stand.review, clamd=clamd.address)
    assert stand.work(put.task_id) == "completed"
    assert stand.version(put.version_id).state == "pending"
