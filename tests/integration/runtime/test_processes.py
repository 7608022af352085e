"""Child processes that are looked after, with real children."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from services.cli.output import FileOutput, TerminalOutput
from services.cli.processes import ProcessSpec, ProcessTable
from shared.runtime.settings import child_environment
from tests.support.eventually import eventually, never

PATIENT = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('up', flush=True); time.sleep(600)"
)


@pytest.fixture
def output(tmp_path: Path) -> FileOutput:
    return FileOutput(tmp_path / "logs")


@pytest.fixture
def table(output: FileOutput) -> Iterator[ProcessTable]:
    table = ProcessTable(output)
    yield table
    table.stop_all(1.0)


def spec(name: str, code: str, order: int = 0) -> ProcessSpec:
    return ProcessSpec(name, [sys.executable, "-c", code], child_environment({}), order)


def wait_up(output: FileOutput, name: str, times: int = 1) -> None:
    eventually(lambda: output.path(name).read_text().count("up\n") >= times)


def test_a_killed_process_is_started_again(table: ProcessTable, output: FileOutput) -> None:
    process = table.start(spec("one", PATIENT))
    wait_up(output, "one")
    first = table.pids()["one"]
    process.signal(signal.SIGKILL)
    wait_up(output, "one", times=2)
    assert table.pids()["one"] != first
    assert process.restarts == 1
    assert "ended by signal 9; starting it again" in output.path("one").read_text()


def test_a_process_that_cannot_live_is_started_less_and_less_often(
    table: ProcessTable, output: FileOutput
) -> None:
    table.start(spec("bad", "raise SystemExit(7)"))
    text = eventually(
        lambda: (t := output.path("bad").read_text()).count("starting it again") >= 3 and t
    )
    waits = [float(found) for found in re.findall(r"again in ([\d.]+) s", text)]
    assert waits[:3] == [0.2, 0.4, 0.8]
    assert "ended with exit code 7" in text


def test_a_stopped_process_stays_stopped_until_it_is_started(
    table: ProcessTable, output: FileOutput
) -> None:
    process = table.start(spec("one", PATIENT))
    wait_up(output, "one")
    process.ask_to_stop()
    assert process.wait(5.0)
    never(lambda: process.pid, during=0.6)
    process.start()
    assert process.pid is not None


def test_groups_are_stopped_in_their_order(output: FileOutput, tmp_path: Path) -> None:
    code = (
        "import signal, sys, time\n"
        "def end(*_):\n"
        "    open({log!r}, 'a').write({name!r} + ' ')\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    log = str(tmp_path / "order")
    table = ProcessTable(output)
    for name, order in (("redis", 2), ("worker", 1), ("api", 0)):
        table.start(spec(name, code.format(log=log, name=name), order))
    for name in ("redis", "worker", "api"):
        wait_up(output, name)
    assert table.stop_all(5.0) == []
    assert Path(log).read_text() == "api worker redis "
    assert table.pids() == {}


def test_one_that_does_not_stop_is_killed_and_named(output: FileOutput) -> None:
    table = ProcessTable(output)
    table.start(spec("stubborn", STUBBORN))
    wait_up(output, "stubborn")
    assert table.stop_all(0.3) == ["stubborn"]
    assert table.pids() == {}


def test_a_paused_process_is_stopped_too(output: FileOutput) -> None:
    table = ProcessTable(output)
    process = table.start(spec("paused", PATIENT))
    wait_up(output, "paused")
    process.signal(signal.SIGSTOP)
    assert table.stop_all(5.0) == []


def test_a_signal_to_our_group_does_not_reach_the_children(
    table: ProcessTable, output: FileOutput
) -> None:
    table.start(spec("one", PATIENT))
    wait_up(output, "one")
    pid = table.pids()["one"]
    assert os.getpgid(pid) == pid
    assert os.getsid(pid) == pid


def test_the_input_of_a_child_ends_with_its_parent(tmp_path: Path) -> None:
    log = tmp_path / "child"
    child = f"import sys; sys.stdin.read(); open({str(log)!r}, 'w').write('input ended')"
    parent = (
        "import sys\n"
        "from pathlib import Path\n"
        "from services.cli.output import FileOutput\n"
        "from services.cli.processes import ProcessSpec, ProcessTable\n"
        "import os, signal\n"
        f"table = ProcessTable(FileOutput(Path({str(tmp_path)!r})))\n"
        f"table.start(ProcessSpec('one', [sys.executable, '-c', {child!r}], dict(os.environ)))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    started = psutil.Popen([sys.executable, "-c", parent], env=child_environment({}))
    assert started.wait(20.0) == -signal.SIGKILL
    assert eventually(lambda: log.exists() and log.read_text()) == "input ended"


def test_lines_on_a_terminal_carry_the_name_of_their_process() -> None:
    stream = io.StringIO()
    table = ProcessTable(TerminalOutput(stream))
    table.start(
        spec("talker", "print('one'); print('two', flush=True); import time; time.sleep(9)")
    )
    eventually(lambda: "two" in stream.getvalue())
    table.stop_all(5.0)
    lines = stream.getvalue().splitlines()
    assert lines[:2] == ["talker     | one", "talker     | two"]
