"""The helpers that tests wait and choose with can themselves fail."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.eventually import eventually, never

ROOT = Path(__file__).resolve().parents[3]


def _collected(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in {0, 5}, done.stdout + done.stderr
    return done.stdout


def test_eventually_returns_the_first_true_answer() -> None:
    answers = iter([None, 0, "yes", "later"])
    assert eventually(lambda: next(answers)) == "yes"


def test_eventually_gives_up_with_the_reason() -> None:
    def condition() -> bool:
        raise AssertionError("still one")

    with pytest.raises(AssertionError, match=r"not within 0\.05 s") as caught:
        eventually(condition, 0.05)
    assert "still one" in str(caught.value.__cause__)


def test_eventually_lets_errors_through() -> None:
    with pytest.raises(ZeroDivisionError):
        eventually(lambda: 1 / 0)


def test_never_fails_when_it_happens() -> None:
    with pytest.raises(AssertionError, match="it happened"):
        never(lambda: True, 0.05)
    never(lambda: False, 0.05)


def test_no_root_deselects_what_needs_servers_from_apt() -> None:
    listed = _collected("tests/integration/servers", "--no-root")
    assert "test_database_url_is_empty_and_of_one_test_only[sqlite]" in listed
    assert "[mariadb]" not in listed
    assert "test_rgw_is_a_real_s3" not in listed
    assert "deselected" in listed


def test_a_unit_test_that_uses_the_network_fails() -> None:
    with socket.socket() as own, pytest.raises(pytest.fail.Exception, match="used the network"):
        own.connect(("127.0.0.1", 9))
    local, other = socket.socketpair()
    with local, other:
        local.sendall(b"a")
        assert other.recv(1) == b"a"
