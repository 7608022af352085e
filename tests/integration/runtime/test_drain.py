"""A worker that is asked to stop in the middle of a transfer."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from services.cli.supervisor import EmbeddedStack
from shared.core.clock import monotonic
from shared.outbox.schema import tasks
from tests.support.eventually import eventually

MIB = 1024**2


@pytest.fixture
def slow_stack(tmp_path: Path) -> Iterator[EmbeddedStack]:
    """Two upload workers and one channel on which 16 MiB take four seconds."""
    with EmbeddedStack(
        tmp_path,
        workers={"upload": 2},
        variables={
            "BLOX_SHUTDOWN_SECONDS": "4",
            "BLOX_CHANNELS__SLOW__KIND": "file",
            "BLOX_CHANNELS__SLOW__BANDWIDTH_BYTES_PER_SECOND": str(4 * MIB),
            "BLOX_CHANNELS__SLOW__PART_BYTES": str(MIB),
        },
    ) as stack:
        yield stack


def send(stack: EmbeddedStack, method: str, path: str, body: bytes, content_type: str) -> Any:
    request = urllib.request.Request(
        stack.api_url + path,
        data=body,
        method=method,
        headers={"Authorization": f"Bearer {stack.admin_key}", "Content-Type": content_type},
    )
    with urllib.request.urlopen(request, timeout=30.0) as answer:
        return json.load(answer)


def test_it_gives_its_task_back_at_once_and_another_goes_on_from_the_checkpoint(
    slow_stack: EmbeddedStack,
) -> None:
    stack = slow_stack
    engine = sa.create_engine(stack.settings.database_url)
    bucket = json.dumps({"channels": ["slow"]}).encode()
    send(stack, "PUT", "/v1/buckets/first", bucket, "application/json")
    path = "/v1/buckets/first/objects/large.bin"
    put = send(stack, "PUT", path, os.urandom(16 * MIB), "application/octet-stream")

    def row() -> Any:
        with engine.connect() as connection:
            return connection.execute(sa.select(tasks).where(tasks.c.id == put["task_id"])).one()

    eventually(lambda: row().state == "running" and row().progress >= 2 * MIB, timeout=20.0)
    first = row().owner.partition(":")[0]
    name = next(name for name, pid in stack.pids().items() if f"-{pid}-" in first)
    began = monotonic()
    stack.stop_process(name)
    assert monotonic() - began < stack.settings.shutdown_seconds + 5.0
    assert row().state != "completed"

    done = eventually(lambda: (r := row()).state == "completed" and r, timeout=30.0)
    assert done.owner.partition(":")[0] != first
    assert (done.attempt, done.recoveries) == (1, 0), "given back, not lost and not failed"
    assert done.result["parts_kept"] >= 2
    assert done.result["parts_kept"] + done.result["parts_sent"] == 16
    engine.dispose()
