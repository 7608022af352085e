"""The whole stack as its supervisor and an orchestrator see it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import stat
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from services.cli.supervisor import EmbeddedStack
from shared.core.errors import ConflictError
from tests.integration.runtime.asking import ask, read
from tests.support.eventually import eventually

_ONCE = ("review", "delete", "replica", "origin", "backup", "restore", "notify")
SERVICES = ("api", "scheduler", "upload-1", "upload-2", *_ONCE)


def get_buckets(stack: EmbeddedStack, key: str) -> int:
    address = urlsplit(stack.api_url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=10.0)
    try:
        connection.request("GET", "/v1/buckets", headers={"Authorization": f"Bearer {key}"})
        return connection.getresponse().status
    finally:
        connection.close()


def test_every_service_is_a_process_of_its_own_and_ready(stack: EmbeddedStack) -> None:
    assert set(stack.pids()) == {"redis", *SERVICES}
    for name in SERVICES:
        assert ask(stack.health_url(name), "/livez")[0] == 200
        assert ask(stack.health_url(name), "/readyz")[0] == 200


def test_the_admin_key_opens_the_api_and_nothing_else_does(stack: EmbeddedStack) -> None:
    assert get_buckets(stack, stack.admin_key) == 200
    assert get_buckets(stack, "blox_" + "x" * 43) == 401


def test_secrets_lie_in_files_that_only_their_owner_reads(stack: EmbeddedStack) -> None:
    for name in ("secret.key", "admin.key", "redis.password", "redis/redis.conf"):
        mode = (stack.layout.root / name).stat().st_mode
        assert stat.S_IMODE(mode) == 0o600, name
    for name in SERVICES:
        log = stack.log_path(name).read_text()
        for secret in (stack.admin_key, stack.layout.secret_key(), stack.layout.redis_password()):
            assert secret not in log


@pytest.mark.parametrize("name", SERVICES)
def test_metrics_of_every_service_parse(stack: EmbeddedStack, name: str) -> None:
    status, text = read(stack.health_url(name), "/metrics")
    assert status == 200
    names = {family.name for family in text_string_to_metric_families(text)}
    assert {"blox_build_info", "blox_database_pool_wait_seconds"} <= names
    assert ("blox_worker_threads" in names) == (name not in {"api", "scheduler"})
    assert ("blox_tasks" in names) == (name == "scheduler")


def test_the_scheduler_knows_who_consumes_what(stack: EmbeddedStack) -> None:
    def consumers() -> dict[str, float]:
        _, text = read(stack.health_url("scheduler"), "/metrics")
        return {
            sample.labels["queue"]: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "blox_consumers"
        }

    wanted = {"upload": 2.0, **dict.fromkeys(_ONCE, 1.0)}
    eventually(lambda: consumers() == wanted, timeout=30.0, message="statistics name all workers")


def test_a_killed_process_comes_back_and_is_ready_again(stack: EmbeddedStack) -> None:
    before = stack.restarts()["upload-1"]
    pid = stack.kill("upload-1")
    eventually(lambda: stack.pids().get("upload-1") not in {None, pid}, timeout=20.0)
    stack.wait_ready(30.0, "upload-1")
    assert stack.restarts()["upload-1"] == before + 1
    assert "ended by signal 9; starting it again" in stack.log_path("upload-1").read_text()


def test_without_redis_workers_are_not_ready_api_and_scheduler_are_and_all_live(
    stack: EmbeddedStack,
) -> None:
    stack.stop_process("redis")
    try:
        for name in ("upload-1", "review"):
            reasons = eventually(
                lambda name=name: ask(stack.health_url(name), "/readyz")[1]["reasons"],
                timeout=20.0,
            )
            assert "last answer" in reasons["redis"]
        for name in ("api", "scheduler"):
            assert ask(stack.health_url(name), "/readyz")[0] == 200
        for name in SERVICES:
            assert ask(stack.health_url(name), "/livez")[0] == 200
    finally:
        stack.start_process("redis")
    stack.wait_ready(30.0)


def test_a_process_can_be_given_other_variables_for_its_next_start(stack: EmbeddedStack) -> None:
    stack.stop_process("delete")
    stack.set_variables("delete", {"BLOX_WORKER__THREADS": "7"})
    stack.start_process("delete")
    stack.wait_ready(30.0, "delete")
    assert "blox_worker_threads 7.0" in read(stack.health_url("delete"), "/metrics")[1]
    stack.set_variables("delete", {})


def test_a_second_stack_is_kept_out_of_the_same_directory(stack: EmbeddedStack) -> None:
    with pytest.raises(ConflictError, match="another stack runs"):
        EmbeddedStack(stack.layout.root).start()
    assert get_buckets(stack, stack.admin_key) == 200


def log_times(path: Path) -> dict[str, str]:
    """Return event -> time of its last line, of a process's own log lines."""
    times = {}
    for line in path.read_text().splitlines():
        if line.startswith("{"):
            entry = json.loads(line)
            times[entry["event"]] = entry["timestamp"]
    return times


def test_a_stop_is_ordered_quick_and_leaves_nothing_and_the_next_start_keeps_the_key(
    tmp_path: Path,
) -> None:
    stack = EmbeddedStack(tmp_path, workers={"upload": 1})
    stack.start()
    key, pids = stack.admin_key, stack.pids()
    assert set(pids) == {"redis", "api", "scheduler", "upload"}
    # A signal more than needed must not break the order.
    os.kill(pids["upload"], signal.SIGTERM)
    os.kill(pids["upload"], signal.SIGTERM)
    assert stack.stop() == []
    assert not any(psutil.pid_exists(pid) for pid in pids.values())
    api, scheduler = (log_times(stack.log_path(name)) for name in ("api", "scheduler"))
    assert api["service_stopped"] <= scheduler["service_stopping"]
    assert "bye bye" in stack.log_path("redis").read_text()
    for name in ("api", "scheduler", "upload"):
        text = stack.log_path(name).read_text()
        assert '"left_behind": []' in text
        assert "shutdown_stage" not in text, "no stage failed or overran"

    with EmbeddedStack(tmp_path, workers={"upload": 1}) as again:
        assert again.admin_key == key
        assert get_buckets(again, key) == 200


def test_when_the_supervisor_is_killed_its_children_end_and_the_next_start_works(
    tmp_path: Path,
) -> None:
    import sys

    from services.cli.supervisor import python_environment

    code = (
        "import json, os, signal, sys\n"
        "from pathlib import Path\n"
        "from services.cli.supervisor import EmbeddedStack\n"
        f"stack = EmbeddedStack(Path({str(tmp_path)!r}), workers={{'upload': 1}})\n"
        "stack.start()\n"
        "print(json.dumps(stack.pids()), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    parent = psutil.Popen(
        [sys.executable, "-c", code], env=python_environment({}), stdout=-1, text=True
    )
    output, _ = parent.communicate(timeout=90.0)
    pids = json.loads(output)
    services = [pid for name, pid in pids.items() if name != "redis"]
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in services), timeout=40.0)

    with EmbeddedStack(tmp_path, workers={"upload": 1}) as stack:
        assert not psutil.pid_exists(pids["redis"]), "the leftover Redis was ended"
        assert get_buckets(stack, stack.admin_key) == 200
