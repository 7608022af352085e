"""SIGKILL at every step of joining parts; another worker goes on, and sweeps clean up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shared.catalog.invariants.rows import row_breaches
from shared.catalog.models import SessionState, UploadSession
from shared.core.clock import Deadline, utc_now
from tests.integration.handlers.sweeping import passes, sweeper
from tests.support.crash import crash
from tests.support.handlers import Stand
from tests.support.uploads import frozen, outcome, parts, version_of

pytestmark = pytest.mark.databases("mariadb")

KILLED = -9
PARTS = [os.urandom(150_000), os.urandom(70_000), b"the end"]
STEPS = [
    "assemble.claimed",
    "assemble.after_key",
    "assemble.after_upload_id",
    "assemble.after_part",
    "assemble.after_bytes",
    "assemble.before_commit",
    "complete.before_commit",
    "complete.after_commit",
    "assemble.after_commit",
    "assemble.after_release",
]
#: Parts that were there when it died.
KEPT = {
    "assemble.claimed": 0,
    "assemble.after_upload_id": 0,
    "assemble.after_part": 1,
    "assemble.after_bytes": 4,
    "assemble.before_commit": 4,
}


def die(stand: Stand, root: Path, upload: UploadSession, step: str) -> None:
    assert upload.task_id is not None
    url = stand.db.engine.url.render_as_string(hide_password=False)
    assert crash(url, root, upload.task_id, step) == KILLED
    # Whoever sweeps meanwhile takes nothing that is still needed.
    passes(sweeper(stand), 3)


def go_on(stand: Stand, upload: UploadSession) -> None:
    """Bring the task back as the lease scan does, and end it."""
    assert upload.task_id is not None
    if stand.state(upload.task_id) == "running":
        stand.bench.set(upload.task_id, state="pending", owner=None, lease_until=None)
        assert stand.work(upload.task_id) == "completed"
    assert stand.state(upload.task_id) == "completed"


def check_all(stand: Stand, content: bytes, upload: UploadSession) -> None:
    """One result, one version with the right bytes, and nothing left over."""
    state, result = outcome(stand, upload)
    assert state == SessionState.DONE
    version = version_of(stand, upload)
    assert (result["version_id"], version.generation) == (version.id, 1)
    stand.work_all("upload")
    assert stand.stored_bytes(version.id) == content
    sweeps = sweeper(stand)
    passes(sweeps, 3)
    assert list(stand.staging.old(minimum_age_seconds=0.0, deadline=Deadline(5))) == []
    assert list(stand.staging.trashed(minimum_age_seconds=0.0, deadline=Deadline(5))) == []
    assert list(stand.staging.open_uploads(deadline=Deadline(5))) == []
    assert parts(stand, upload) == []
    now = utc_now()
    breaches = stand.look(
        lambda session: list(row_breaches(session, now=now, late_seconds=0, sweep_seconds=0))
    )
    assert breaches == []


@pytest.mark.parametrize("step", STEPS)
def test_joining_goes_on_after_a_kill(stand: Stand, tmp_path: Path, step: str) -> None:
    upload = frozen(stand, stand.bucket(), "a", PARTS)
    die(stand, tmp_path, upload, step)
    go_on(stand, upload)
    if step in KEPT:
        events = stand.bench.events(upload.task_id or 0)
        joined = [event.data for event in events if event.type == "joined"]
        # What was written is not written again: four parts of 64 KiB.
        assert joined[-1] == {"parts_sent": 4 - KEPT[step], "parts_kept": KEPT[step]}
    check_all(stand, b"".join(PARTS), upload)


@pytest.mark.parametrize("step", ["assemble.before_commit", "complete.after_commit"])
def test_lone_part_survives_a_kill(stand: Stand, tmp_path: Path, step: str) -> None:
    upload = frozen(stand, stand.bucket(), "a", PARTS[:1])
    die(stand, tmp_path, upload, step)
    go_on(stand, upload)
    check_all(stand, PARTS[0], upload)
