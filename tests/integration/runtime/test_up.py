"""`blox up` in a terminal's place: banner, prefixed lines, Ctrl-C twice."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import psutil

from services.cli.supervisor import EmbeddedStack, python_environment
from tests.servers.ports import free_port
from tests.servers.process import Process
from tests.support.eventually import eventually

RUN = "import sys; from pathlib import Path; from services.cli.up import run_up; "


def test_it_says_how_to_reach_it_and_stops_on_ctrl_c(tmp_path: Path) -> None:
    code = RUN + f"sys.exit(run_up(Path({str(tmp_path / 'data')!r})))"
    log = tmp_path / "terminal"
    up = Process("up", [sys.executable, "-c", code], log=log, env=python_environment({}))
    with up:
        eventually(lambda: "Ctrl-C stops it" in log.read_text(), timeout=60.0)
        text = log.read_text()
        assert re.search(r"API +http://127\.0\.0\.1:\d+/v1\n", text)
        assert re.search(r"OpenAPI +http://127\.0\.0\.1:\d+/docs\n", text)
        assert re.search(r"admin key +blox_\S{40,}", text)
        assert re.search(r"^upload-2 +\| .*service_ready", text, re.MULTILINE)
        # As the terminal does it: to the whole group, and an impatient user does it twice.
        os.killpg(up.pid, signal.SIGINT)
        eventually(lambda: "Stopping:" in log.read_text(), timeout=10.0)
        os.killpg(up.pid, signal.SIGINT)
        eventually(lambda: not up.is_running(), timeout=40.0)
    assert up.returncode == 0
    lines = log.read_text().splitlines()

    def last(pattern: str) -> int:
        return max(i for i, line in enumerate(lines) if re.search(pattern, line))

    api = last(r"^api +\| .*service_stopped")
    assert api < last(r"^upload-1 +\| .*service_stopping") < last(r"^redis +\| .*bye bye")
    assert "starting it again" not in log.read_text(), "the signal reached only the parent"


def test_ctrl_c_while_it_starts_ends_it_and_leaves_nothing(tmp_path: Path) -> None:
    code = RUN + f"sys.exit(run_up(Path({str(tmp_path / 'data')!r})))"
    log = tmp_path / "terminal"
    up = Process("up", [sys.executable, "-c", code], log=log, env=python_environment({}))
    with up:
        eventually(lambda: "api " in log.read_text(), timeout=60.0)
        os.killpg(up.pid, signal.SIGINT)
        children = psutil.Process(up.pid).children(recursive=True)
        eventually(lambda: not up.is_running(), timeout=40.0)
    assert up.returncode == 0
    assert len(children) >= 2
    assert not any(child.is_running() for child in children)


def ended(tmp_path: Path, *arguments: str, **variables: str) -> tuple[int | None, str]:
    """Run `blox up` until it ends by itself; its exit code, and all that it wrote."""
    command = [sys.executable, "-m", "services.cli", "up", *arguments]
    log = tmp_path / "terminal"
    up = Process("up", command, log=log, env=python_environment(variables))
    with up:
        eventually(lambda: not up.is_running(), timeout=40.0)
    text = log.read_text()
    assert "Traceback" not in text
    return up.returncode, text


def test_bad_settings_are_a_sentence_and_not_a_traceback(tmp_path: Path) -> None:
    folder = ("--directory", str(tmp_path / "data"))
    code, text = ended(tmp_path, *folder, BLOX_WORKER__THREADS="none")
    assert code == 2
    assert text.startswith("BLOX_WORKER__THREADS: ")
    code, text = ended(tmp_path, *folder, BLOX_CHANNELS__X__KIND="s3")
    assert code == 2
    assert "lacks BLOX_CHANNELS__X__ENDPOINT" in text
    assert "redis" not in text, "nothing was started"


def test_servers_that_are_away_are_told_before_anything_waits_for_them(tmp_path: Path) -> None:
    folder = ("--directory", str(tmp_path / "data"))
    away = f"redis://127.0.0.1:{free_port()}/0"
    code, text = ended(tmp_path, *folder, BLOX_REDIS_URL=away)
    assert code == 1
    assert "Redis of BLOX_REDIS_URL does not answer" in text
    address = f"mysql+pymysql://somebody:guess@127.0.0.1:{free_port()}/blox"
    code, text = ended(tmp_path, *folder, BLOX_DATABASE_URL=address)
    assert code == 1
    assert "the schema could not be brought up: Can't connect to MySQL server" in text
    assert "guess" not in text


def test_a_folder_that_is_taken_or_is_none_is_told(stack: EmbeddedStack, tmp_path: Path) -> None:
    code, text = ended(tmp_path, "--directory", str(stack.layout.root))
    assert code == 4
    assert text.startswith("another stack runs in ")
    (tmp_path / "file").touch()
    code, text = ended(tmp_path, "--directory", str(tmp_path / "file"))
    assert code == 2
    assert "cannot be the folder of a stack: File exists" in text
