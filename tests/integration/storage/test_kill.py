"""A process killed in the middle of a transfer, and another that goes on where it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shared.core.clock import Deadline
from shared.storage.file import FileChannel
from shared.storage.registry import open_channel
from shared.storage.spec import ChannelSpec
from tests.servers.moto import S3Server
from tests.support.content import put, read, sha256
from tests.support.eventually import eventually

MEBIBYTE = 1024 * 1024
PART = 5 * MEBIBYTE
PARTS = 6
DATA = os.urandom(PARTS * PART - 12345)
#: Slow enough that the kill meets the middle, a part every half second.
BYTES_PER_SECOND = 10 * MEBIBYTE


def s3_spec(server: S3Server) -> dict[str, Any]:
    return {
        "name": "target",
        "kind": "s3",
        "settings": {"endpoint": server.endpoint, "bucket": f"b{uuid.uuid4().hex[:20]}"},
        "secrets": {"access_key": server.access_key, "secret_key": server.secret_key},
    }


def file_spec(path: Path) -> dict[str, Any]:
    return {"name": "target", "kind": "file", "settings": {"root": str(path / "target")}}


SPECS: dict[str, Callable[[pytest.FixtureRequest, Path], dict[str, Any]]] = {
    "file": lambda request, path: file_spec(path),
    "s3-moto": lambda request, path: s3_spec(request.getfixturevalue("moto")),
    "s3-rgw": lambda request, path: s3_spec(request.getfixturevalue("rgw").server),
}


class Transfers:
    """Runs the transfer of one object in processes of its own."""

    def __init__(self, path: Path, spec: dict[str, Any]) -> None:
        self.path = path
        self.spec = spec
        self.checkpoint = path / "checkpoint.json"
        source = FileChannel(path / "source", name="source")
        source.prepare(deadline=Deadline(30))
        put(source, "from", DATA)
        self.channel = open_channel(ChannelSpec(**spec))
        self.channel.prepare(deadline=Deadline(30))

    def start(self, *, resume: bool, limit: int = 0, failpoints: str = "") -> subprocess.Popen[str]:
        settings = {
            **self.spec["settings"],
            "part_bytes": PART,
            "bandwidth_bytes_per_second": limit,
        }
        order = self.path / f"order-{resume}.json"
        order.write_text(
            json.dumps(
                {
                    "spec": {**self.spec, "settings": settings},
                    "source": str(self.path / "source"),
                    "checkpoint": str(self.checkpoint),
                    "key": "to/there",
                    "size": len(DATA),
                    "sha256": sha256(DATA),
                    "resume": resume,
                    "failpoints": failpoints,
                }
            )
        )
        return subprocess.Popen(
            [sys.executable, "-m", "tests.integration.storage.transfer_process", str(order)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )

    def finish(self) -> dict[str, Any]:
        """Resume to the end and return what came out."""
        process = self.start(resume=True)
        output, _ = process.communicate(timeout=100)
        assert process.returncode == 0
        result: dict[str, Any] = json.loads(output)
        return result

    def saved(self) -> dict[str, Any]:
        if not self.checkpoint.exists():
            return {"parts_done": -1}
        saved: dict[str, Any] = json.loads(self.checkpoint.read_text())
        return saved


@pytest.fixture(
    params=[
        pytest.param(kind, marks=pytest.mark.needs_root if "rgw" in kind else ()) for kind in SPECS
    ]
)
def transfers(request: pytest.FixtureRequest, tmp_path: Path) -> Transfers:
    return Transfers(tmp_path, SPECS[request.param](request, tmp_path))


def test_another_process_goes_on_from_the_checkpoint(transfers: Transfers) -> None:
    first = transfers.start(resume=False, limit=BYTES_PER_SECOND)
    try:
        eventually(lambda: transfers.saved()["parts_done"] >= 2, 60)
    finally:
        first.kill()
        first.wait(10)
    done_before = transfers.saved()["parts_done"]
    assert done_before < PARTS, "the kill should have met the middle"
    upload_id = transfers.saved()["upload_id"]
    assert transfers.channel.head("to/there", deadline=Deadline(30)) is None
    listed = list(transfers.channel.list_uploads(deadline=Deadline(30)))
    assert [upload.upload_id for upload in listed] == [upload_id]

    result = transfers.finish()
    assert result["parts_kept"] >= done_before
    assert result["parts_sent"] == PARTS - result["parts_kept"]
    assert result["calls"]["put_part"] == result["parts_sent"]
    assert result["calls"].get("create_upload", 0) == 0
    assert transfers.saved()["upload_id"] == upload_id
    assert read(transfers.channel, "to/there") == DATA
    assert list(transfers.channel.list_uploads(deadline=Deadline(30))) == []


def test_a_part_whose_checkpoint_was_lost_is_not_sent_again(transfers: Transfers) -> None:
    first = transfers.start(resume=False, failpoints="storage.part_sent=kill")
    assert first.wait(60) == -signal.SIGKILL
    assert transfers.saved()["parts_done"] == 0
    result = transfers.finish()
    # With two parts under way the other one may or may not have arrived.
    assert 1 <= result["parts_kept"] <= 2
    assert result["calls"]["put_part"] == PARTS - result["parts_kept"]
    assert read(transfers.channel, "to/there") == DATA


def test_a_kill_between_completion_and_proof_sends_nothing_again(transfers: Transfers) -> None:
    first = transfers.start(resume=False, failpoints="storage.completed=kill")
    assert first.wait(60) == -signal.SIGKILL
    result = transfers.finish()
    assert result["calls"].get("put_part", 0) == 0
    assert result["calls"].get("create_upload", 0) == 0
    assert read(transfers.channel, "to/there") == DATA
