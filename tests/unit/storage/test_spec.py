from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shared.core.clock import Deadline
from shared.core.errors import InvalidError
from shared.storage.errors import BreakerOpen, ChannelUnavailable
from shared.storage.registry import Channels, check_spec, open_channel
from shared.storage.spec import ChannelSpec

S3: dict[str, Any] = {"endpoint": "http://127.0.0.1:1", "bucket": "bucket"}
KEYS = {"access_key": "letmein", "secret_key": "hush"}


def test_secrets_never_show() -> None:
    spec = ChannelSpec("s3-1", "s3", S3, KEYS)
    channel = open_channel(spec)
    for shown in (repr(spec), str(spec), repr(channel), repr(channel.settings)):  # type: ignore[attr-defined]
        assert "hush" not in shown
        assert "letmein" not in shown


def test_a_right_spec_is_accepted() -> None:
    check_spec(ChannelSpec("f", "file", {"root": "/srv/f", "part_bytes": 4096}))
    check_spec(
        ChannelSpec(
            "s",
            "s3",
            S3
            | {
                "region": "eu-west",
                "prefix": "tenant/",
                "checksum": "sha256",
                "read_timeout_seconds": 5,
                "ca_file": None,
                "parallel_parts": 4,
                "bandwidth_bytes_per_second": 1_000_000,
                "max_running": 8,
            },
            KEYS,
        )
    )


@pytest.mark.parametrize(
    ("kind", "settings", "named"),
    [
        ("tape", {}, "kind"),
        ("file", {}, "root"),
        ("file", {"root": "relative"}, "root"),
        ("file", {"root": 7}, "root"),
        ("file", {"root": "/srv/f", "create": "yes"}, "create"),
        ("file", {"root": "/srv/f", "colour": "red"}, "colour"),
        ("file", {"root": "/srv/f", "part_bytes": True}, "part_bytes"),
        ("file", {"root": "/srv/f", "part_bytes": 10}, "part_bytes"),
        ("file", {"root": "/srv/f", "parallel_parts": 99}, "parallel_parts"),
        ("file", {"root": "/srv/f", "max_running": -1}, "max_running"),
        ("file", {"root": "/srv/f", "max_running": 1.5}, "max_running"),
        ("file", {"root": "/srv/f", "breaker_failures": 0}, "breaker_failures"),
        ("file", {"root": "/srv/f", "breaker_open_seconds": 0}, "breaker_open_seconds"),
        (
            "file",
            {"root": "/srv/f", "bandwidth_bytes_per_second": -1},
            "bandwidth_bytes_per_second",
        ),
        ("s3", {"bucket": "bucket"}, "endpoint"),
        ("s3", S3 | {"endpoint": "ftp://x"}, "endpoint"),
        ("s3", S3 | {"endpoint": "http://user:pass@x"}, "endpoint"),
        ("s3", S3 | {"bucket": ""}, "bucket"),
        ("s3", S3 | {"checksum": "crc"}, "checksum"),
        ("s3", S3 | {"part_bytes": 1024 * 1024}, "part_bytes"),
        ("s3", S3 | {"prefix": "../up/"}, "prefix"),
        ("s3", S3 | {"read_timeout_seconds": 0}, "read_timeout_seconds"),
        ("s3", S3 | {"access_key": "twice"}, "access_key"),
        ("s3", S3 | {"endpoint": "http://"}, "endpoint"),
        ("s3", S3 | {"endpoint": "http://a b"}, "endpoint"),
        ("s3", S3 | {"endpoint": "http://[::1"}, "endpoint"),
        ("s3", S3 | {"endpoint": "http://x:99999"}, "endpoint"),
        ("s3", S3 | {"endpoint": "http://x\r\nhost: y"}, "endpoint"),
        ("s3", S3 | {"bucket": "../other"}, "bucket"),
        ("s3", S3 | {"region": "é"}, "region"),
        ("s3", S3 | {"ca_file": "/a\0b"}, "ca_file"),
        ("s3", S3 | {"connections": 10**9}, "connections"),
        ("s3", S3 | {"read_timeout_seconds": float("nan")}, "read_timeout_seconds"),
        ("file", {"root": "/srv/f", "breaker_open_seconds": float("inf")}, "breaker_open_seconds"),
        ("file", {"root": "/srv/f", "breaker_failures": 10**400}, "breaker_failures"),
        ("file", {"root": "/srv/f\n"}, "root"),
    ],
)
def test_a_wrong_spec_is_refused_by_the_settings_name(
    kind: str, settings: dict[str, Any], named: str
) -> None:
    spec = ChannelSpec("wrong", kind, settings, KEYS if kind == "s3" else {})
    with pytest.raises(InvalidError) as caught:
        check_spec(spec)
    assert caught.value.facts["setting"] == named
    assert caught.value.facts["channel"] == "wrong"


def test_missing_secrets_are_named() -> None:
    with pytest.raises(InvalidError) as caught:
        check_spec(ChannelSpec("s", "s3", S3, {"access_key": "a"}))
    assert caught.value.facts["setting"] == "secret_key"


def test_secrets_among_the_settings_are_refused() -> None:
    """Settings are kept and shown as they are."""
    for name, value in KEYS.items():
        with pytest.raises(InvalidError) as caught:
            check_spec(ChannelSpec("s", "s3", {**S3, name: value}))
        assert caught.value.facts["setting"] == name
        assert value not in str(caught.value)


@pytest.mark.parametrize("key", ["", "a b", "é", "a\r\nb"])
def test_key_that_no_header_can_hold_is_refused(key: str) -> None:
    with pytest.raises(InvalidError) as caught:
        check_spec(ChannelSpec("s", "s3", S3, {**KEYS, "access_key": key}))
    assert caught.value.facts["setting"] == "access_key"


def test_a_channel_is_made_once_until_its_spec_changes(tmp_path: Path) -> None:
    channels = Channels()
    spec = ChannelSpec("f", "file", {"root": str(tmp_path)})
    opened = channels.open(spec)
    assert channels.open(ChannelSpec("f", "file", {"root": str(tmp_path)})) is opened
    changed = channels.open(ChannelSpec("f", "file", {"root": str(tmp_path), "part_bytes": 8192}))
    assert changed is not opened
    assert changed.part_bytes == 8192
    assert opened.upload_limit is None


def test_the_kind_chooses_how_many_parts_run_at_once(tmp_path: Path) -> None:
    channels = Channels()
    assert channels.open(ChannelSpec("f", "file", {"root": str(tmp_path)})).parallel_parts == 1
    assert channels.open(ChannelSpec("s", "s3", S3, KEYS)).parallel_parts == 2


def test_the_breaker_of_a_channel_guards_its_calls(tmp_path: Path) -> None:
    root = tmp_path / "not-prepared"
    opened = Channels().open(ChannelSpec("f", "file", {"root": str(root), "breaker_failures": 2}))
    for _ in range(2):
        with pytest.raises(ChannelUnavailable):
            opened.channel.head("key", deadline=Deadline(5))
    assert not opened.ready()
    assert opened.retry_after_seconds() > 0
    with pytest.raises(BreakerOpen):
        opened.channel.head("key", deadline=Deadline(5))


def test_settings_of_whoever_runs_the_process_change_no_channel(tmp_path: Path) -> None:
    broken = tmp_path / "config"
    broken.write_text("this is no configuration")
    environment = {
        "AWS_PROFILE": "nobody",
        "AWS_CONFIG_FILE": str(broken),
        "AWS_SHARED_CREDENTIALS_FILE": str(broken),
        "AWS_ENDPOINT_URL": "http://192.0.2.1",
        "AWS_CA_BUNDLE": str(tmp_path / "nothing"),
        "HTTP_PROXY": "http://192.0.2.1",
        "PYTHONPATH": str(Path(__file__).parents[3]),
    }
    code = (
        "from shared.storage.registry import open_channel\n"
        "from shared.storage.spec import ChannelSpec\n"
        f"channel = open_channel(ChannelSpec('s', 's3', {S3!r}, {KEYS!r}))\n"
        "print(channel._client.meta.endpoint_url)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == S3["endpoint"]
