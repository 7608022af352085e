"""Single service processes from boot to end, on real servers."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from services.cli.supervisor import python_environment
from tests.integration.runtime.asking import ask
from tests.servers.mariadb import MariaDB
from tests.servers.ports import free_port
from tests.servers.process import Process
from tests.support.eventually import eventually

KEY = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="


class Service:
    """One `python -m services.<name>`."""

    def __init__(self, name: str, directory: Path, variables: Mapping[str, str]) -> None:
        port = free_port()
        self.log = directory / f"{name}-{port}.log"
        self.health_url = f"http://127.0.0.1:{port}"
        self.process = Process(
            name,
            [sys.executable, "-m", f"services.{name}"],
            log=self.log,
            env=python_environment({**variables, "BLOX_HEALTH__PORT": str(port)}),
        )

    def events(self) -> list[str]:
        lines = [line for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [json.loads(line)["event"] for line in lines]

    def is_ready(self) -> bool:
        return self.process.is_running() and ask(self.health_url, "/readyz")[0] == 200

    def wait_ready(self) -> None:
        self.process.wait_ready(self.is_ready)


@pytest.fixture
def variables(database_url: str, redis_url: str, namespace: str, tmp_path: Path) -> dict[str, str]:
    return {
        "BLOX_DATABASE_URL": database_url,
        "BLOX_REDIS_URL": redis_url,
        "BLOX_NAMESPACE": namespace,
        "BLOX_SECRET_KEY": KEY,
        "BLOX_STAGING__PATH": str(tmp_path / "staging"),
        "BLOX_API__PORT": str(free_port()),
        "BLOX_SHUTDOWN_SECONDS": "10",
        "BLOX_LOG__FORMAT": "json",
    }


def migrate(variables: Mapping[str, str]) -> None:
    command = [sys.executable, "-m", "shared.migrations"]
    subprocess.run(command, env=python_environment(variables), check=True, capture_output=True)


@pytest.mark.databases("mariadb")
@pytest.mark.parametrize(
    "name",
    [
        "upload",
        "review",
        "delete",
        "replica",
        "origin",
        "backup",
        "restore",
        "notify",
        "scheduler",
        "api",
    ],
)
def test_a_service_boots_is_ready_and_ends_in_order(
    name: str, variables: dict[str, str], tmp_path: Path
) -> None:
    migrate(variables)
    service = Service(name, tmp_path, variables)
    with service.process:
        service.wait_ready()
        assert ask(service.health_url, "/livez")[0] == 200
        # The second one must change nothing.
        service.process.signal(signal.SIGTERM)
        service.process.signal(signal.SIGTERM)
        # It ends itself, and tells where it stood, long before it is killed.
        assert service.process.stop(timeout_seconds=60) == 0, service.log.read_text()
    events = service.events()
    assert events[-1] == "service_stopped"
    assert "shutdown_stage_overran" not in events
    assert "shutdown_stage_failed" not in events


@pytest.mark.databases("sqlite")
def test_a_service_waits_for_the_schema_live_and_not_ready(
    variables: dict[str, str], tmp_path: Path
) -> None:
    service = Service("upload", tmp_path, variables)
    with service.process:
        eventually(lambda: "waiting_for_schema" in service.log.read_text(), timeout=20.0)
        assert ask(service.health_url, "/livez")[0] == 200
        status, answer = ask(service.health_url, "/readyz")
        assert status == 503
        assert "blox db upgrade" in answer["reasons"]["process"]
        migrate(variables)
        service.wait_ready()


@pytest.mark.databases("sqlite")
def test_a_service_that_waits_for_the_schema_can_be_stopped(
    variables: dict[str, str], tmp_path: Path
) -> None:
    service = Service("scheduler", tmp_path, variables)
    with service.process:
        eventually(lambda: "waiting_for_schema" in service.log.read_text(), timeout=20.0)
        assert service.process.stop() == 0
    assert service.events()[-1] == "service_stopped"


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"BLOX_WORKER__THREADS": "none"}, "BLOX_WORKER__THREADS"),
        ({"BLOX_SECRET_KEY": ""}, "BLOX_SECRET_KEY is not set"),
        ({"BLOX_DEPLOYMENT": "kubernetes"}, "BLOX_STAGING__SHARED"),
        ({"BLOX_FAILPOINTS": "a=explode"}, "explode"),
    ],
)
def test_bad_settings_end_the_process_with_a_sentence(
    change: dict[str, str], words: str, variables: dict[str, str], tmp_path: Path
) -> None:
    service = Service("upload", tmp_path, {**variables, **change})
    service.process.start()
    assert eventually(lambda: not service.process.is_running(), timeout=30.0)
    assert service.process.returncode == 2
    text = service.log.read_text()
    assert words in text
    assert "Traceback" not in text


@pytest.mark.databases("sqlite")
def test_a_taken_port_ends_the_process_with_a_sentence(
    variables: dict[str, str], tmp_path: Path
) -> None:
    migrate(variables)
    first, second = (Service("api", tmp_path, variables) for _ in range(2))
    with first.process:
        first.wait_ready()
        second.process.start()
        assert eventually(lambda: not second.process.is_running(), timeout=30.0)
        assert second.process.returncode == 1
        assert "cannot be opened" in second.log.read_text()


@pytest.mark.databases("sqlite")
def test_warnings_are_logged_and_do_not_keep_a_service_from_starting(
    variables: dict[str, str], tmp_path: Path
) -> None:
    migrate(variables)
    service = Service(
        "delete", tmp_path, {**variables, "BLOX_GRACE_SECONDS": "0", "BLOX_WOKER__THREADS": "3"}
    )
    with service.process:
        service.wait_ready()
    text = service.log.read_text()
    assert "BLOX_GRACE_SECONDS is 0" in text
    assert "BLOX_WOKER__THREADS is set, but there is no such setting" in text


@pytest.mark.databases("sqlite")
def test_a_process_that_shall_stop_with_its_parent_does(
    variables: dict[str, str], tmp_path: Path
) -> None:
    migrate(variables)
    # The helper gives its children an empty input: for such a process, a parent that is gone.
    service = Service("delete", tmp_path, {**variables, "BLOX_STOP_WITH_PARENT": "true"})
    service.process.start()
    assert eventually(lambda: not service.process.is_running(), timeout=30.0)
    assert service.process.returncode == 0
    assert "the parent process is gone" in service.log.read_text()


def test_an_outage_of_the_database_takes_readiness_away_and_never_liveness(
    private_mariadb: MariaDB, redis_url: str, namespace: str, tmp_path: Path
) -> None:
    variables = {
        "BLOX_DATABASE_URL": private_mariadb.url(private_mariadb.create_database()),
        "BLOX_REDIS_URL": redis_url,
        "BLOX_NAMESPACE": namespace,
        "BLOX_SECRET_KEY": KEY,
        "BLOX_STAGING__PATH": str(tmp_path / "staging"),
        "BLOX_API__PORT": str(free_port()),
        "BLOX_HEALTH__ANSWER_SECONDS": "3",
        "BLOX_LOG__FORMAT": "json",
    }
    migrate(variables)
    services = [Service(name, tmp_path, variables) for name in ("api", "scheduler", "upload")]
    try:
        for service in services:
            service.process.start()
        for service in services:
            service.wait_ready()
        private_mariadb.stop()
        for service in services:
            eventually(lambda s=service: ask(s.health_url, "/readyz")[0] == 503, timeout=20.0)
            assert ask(service.health_url, "/livez")[0] == 200
        private_mariadb.start()
        for service in services:
            eventually(lambda s=service: s.is_ready(), timeout=40.0)
            assert ask(service.health_url, "/livez")[0] == 200
    finally:
        for service in services:
            service.process.stop()
    for service in services:
        assert service.process.returncode == 0
