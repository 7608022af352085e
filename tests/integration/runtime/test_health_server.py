"""The health port as a probe and a scraper see it."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shared.core.errors import InvalidError
from shared.runtime.health import Health
from shared.runtime.health_server import HealthServer
from shared.runtime.metrics import Metrics


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def server(health: Health) -> Iterator[HealthServer]:
    server = HealthServer(health, Metrics("api").registry, host="127.0.0.1", port=0)
    server.start()
    yield server
    server.close()


def get(server: HealthServer, path: str, method: str = "GET") -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5.0)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type", ""), answer.read().decode()
    finally:
        connection.close()


def test_live_and_ready_are_answered_apart(server: HealthServer, health: Health) -> None:
    assert get(server, "/livez")[0] == 200
    status, content_type, body = get(server, "/readyz")
    assert (status, content_type) == (503, "application/json")
    assert json.loads(body)["reasons"] == {"process": "booting: starting"}
    health.booted()
    assert get(server, "/readyz")[0] == 200
    health.drain()
    assert get(server, "/readyz")[0] == 503
    assert get(server, "/livez")[0] == 200


def test_a_process_that_is_not_live_says_why(server: HealthServer, health: Health) -> None:
    health.add_live("consumer", lambda: "has not turned for 90 s")
    status, _, body = get(server, "/livez")
    assert status == 503
    assert json.loads(body)["reasons"] == {"consumer": "has not turned for 90 s"}


def test_metrics_parse(server: HealthServer) -> None:
    status, content_type, body = get(server, "/metrics")
    assert status == 200
    assert content_type.startswith("text/plain")
    names = {family.name for family in text_string_to_metric_families(body)}
    assert {"blox_build_info", "blox_executions", "process_cpu_seconds"} <= names


def test_head_and_unknown_paths_are_answered(server: HealthServer) -> None:
    assert get(server, "/livez", "HEAD") == (200, "application/json", "")
    assert get(server, "/elsewhere")[0] == 404


def test_a_client_that_sends_nothing_holds_up_no_other(server: HealthServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)):
        assert get(server, "/livez")[0] == 200


def test_a_taken_port_is_a_sentence(server: HealthServer, health: Health) -> None:
    with pytest.raises(InvalidError, match=f"127.0.0.1:{server.port} cannot be opened"):
        HealthServer(health, Metrics("api").registry, host="127.0.0.1", port=server.port)
