"""A process that says that it is not alive is ended; one that says nothing is not."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cli.liveness import MISSES, LivenessWatch
from services.cli.output import FileOutput
from services.cli.processes import ProcessSpec, ProcessTable
from shared.runtime.health import Health
from shared.runtime.health_server import HealthServer
from shared.runtime.metrics import Metrics
from shared.runtime.settings import child_environment
from tests.servers.ports import free_port
from tests.support.eventually import eventually


@pytest.fixture
def output(tmp_path: Path) -> FileOutput:
    return FileOutput(tmp_path)


@pytest.fixture
def table(output: FileOutput) -> Iterator[ProcessTable]:
    table = ProcessTable(output)
    code = "import time; time.sleep(600)"
    table.start(ProcessSpec("one", [sys.executable, "-c", code], child_environment({})))
    yield table
    table.stop_all(2.0)


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def url(health: Health) -> Iterator[str]:
    server = HealthServer(health, Metrics("x").registry, host="127.0.0.1", port=0)
    server.start()
    yield f"http://127.0.0.1:{server.port}"
    server.close()


def test_it_is_ended_after_some_answers_in_a_row_and_started_again(
    table: ProcessTable, output: FileOutput, health: Health, url: str
) -> None:
    broken = threading.Event()
    health.add_live("loop", lambda: "hangs" if broken.is_set() else None)
    watch = LivenessWatch(table, lambda _: url, ["one"], output)
    pid = table.pids()["one"]
    broken.set()
    for _ in range(MISSES - 1):
        watch.run_once()
    broken.clear()
    watch.run_once()
    broken.set()
    for _ in range(MISSES - 1):
        watch.run_once()
    assert table.pids()["one"] == pid, "a good answer in between begins the count anew"
    watch.run_once()
    eventually(lambda: table.pids().get("one") not in {None, pid})
    assert "hangs" in output.path("one").read_text()


def test_one_that_does_not_answer_is_left_alone(table: ProcessTable, output: FileOutput) -> None:
    watch = LivenessWatch(table, lambda _: f"http://127.0.0.1:{free_port()}", ["one"], output)
    pid = table.pids()["one"]
    table["one"].signal(signal.SIGSTOP)
    for _ in range(MISSES * 2):
        watch.run_once()
    table["one"].signal(signal.SIGCONT)
    assert table.pids()["one"] == pid
