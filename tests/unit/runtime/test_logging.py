"""Log lines: one shape for all loggers, facts of errors, nothing secret."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from shared.core.errors import UnavailableError
from shared.runtime.logging import configure_logging, drain_logs, hide_secrets
from shared.runtime.settings import LogSettings
from tests.support.logs import plain_logs


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    text = io.StringIO()
    level = logging.getLogger().level
    configure_logging(LogSettings(format="json"), service="upload", stream=text)
    yield text
    for handler in list(logging.getLogger().handlers):
        if getattr(handler, "blox", False):
            logging.getLogger().removeHandler(handler)
    logging.getLogger().setLevel(level)
    plain_logs()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    drain_logs()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_line_of_json_with_its_fields(stream: io.StringIO) -> None:
    structlog.get_logger("outbox").info("task_claimed", task_id=7, queue="upload")
    (line,) = lines(stream)
    assert line["event"] == "task_claimed"
    assert (line["task_id"], line["queue"], line["service"]) == (7, "upload", "upload")
    assert (line["level"], line["logger"]) == ("info", "outbox")
    assert line["timestamp"].endswith("Z")


def test_libraries_come_out_in_the_same_shape(stream: io.StringIO) -> None:
    logging.getLogger("uvicorn").warning("port %d is odd", 13)
    (line,) = lines(stream)
    assert (line["event"], line["service"], line["level"]) == (
        "port 13 is odd",
        "upload",
        "warning",
    )


def test_a_level_below_the_setting_is_not_written(stream: io.StringIO) -> None:
    structlog.get_logger("x").debug("quiet")
    assert lines(stream) == []


def test_the_facts_of_an_error_become_fields(stream: io.StringIO) -> None:
    try:
        raise UnavailableError("no answer", channel="eu-1")
    except UnavailableError:
        structlog.get_logger("x").exception("store_failed")
    (line,) = lines(stream)
    assert (line["error_code"], line["channel"]) == ("unavailable", "eu-1")
    assert "UnavailableError" in line["exception"]


def test_a_second_configuration_replaces_the_first(stream: io.StringIO) -> None:
    other = io.StringIO()
    configure_logging(LogSettings(format="json"), service="api", stream=other)
    structlog.get_logger("again").info("hello")
    assert stream.getvalue() == ""
    assert json.loads(other.getvalue())["service"] == "api"


def test_secrets_do_not_reach_the_log(stream: io.StringIO) -> None:
    structlog.get_logger("x").info(
        "calling",
        url="mysql+pymysql://blox:hunter2@db/blox",
        authorization="Bearer abc.def",
        headers={"Authorization": "Bearer abc.def", "Accept": "json"},
        note="key blox_0123456789abcdef0123 was used with Bearer abc.def",
        secret_key="hunter2",
        body=b"hunter2",
    )
    text = stream.getvalue()
    for secret in ("hunter2", "abc.def", "0123456789abcdef"):
        assert secret not in text
    (line,) = lines(stream)
    assert line["url"] == "mysql+pymysql://blox:[hidden]@db/blox"
    assert line["headers"]["Accept"] == "json"


def test_a_secret_in_a_traceback_is_hidden(stream: io.StringIO) -> None:
    try:
        raise RuntimeError("cannot reach redis://:hunter2@cache:6379/0")
    except RuntimeError:
        structlog.get_logger("x").exception("boom")
    assert "hunter2" not in stream.getvalue()


@pytest.mark.parametrize("name", ["dedupe_key", "object_key", "keys", "token_count", "body_bytes"])
def test_harmless_fields_are_shown(name: str) -> None:
    assert hide_secrets("value", field=name) == "value"


def test_people_get_text_without_colours_in_a_pipe(stream: io.StringIO) -> None:
    text = io.StringIO()
    configure_logging(LogSettings(format="console"), service="api", stream=text)
    structlog.get_logger("p").info("hello_there", key="v")
    assert "hello_there" in text.getvalue()
    assert "\x1b[" not in text.getvalue()


def test_a_link_is_never_whole_in_a_log() -> None:
    url = "https://host/v1/buckets/b/objects/k?blox-key=7&blox-signature=0a1b2c3d&x=1"
    assert hide_secrets(url) == url.replace("0a1b2c3d", "[hidden]")
