"""Calls and bytes of channels are counted, and nothing else changes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from shared.core.clock import Deadline
from shared.runtime.metrics import Metrics
from shared.runtime.observed_channels import ChannelMeter, ObservedChannels
from shared.storage.body import Body
from shared.storage.errors import ObjectMissing
from shared.storage.registry import OpenChannel
from shared.storage.spec import ChannelSpec

BYTES = b"x" * 1000
SHA256 = hashlib.sha256(BYTES).hexdigest()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("upload")


@pytest.fixture
def opened(metrics: Metrics, tmp_path: Path) -> OpenChannel:
    spec = ChannelSpec("a", "file", {"root": str(tmp_path / "a"), "create": True})
    return ObservedChannels(ChannelMeter(metrics)).open(spec)


def requests(metrics: Metrics, operation: str, result: str = "ok") -> float:
    labels = {"channel": "a", "operation": operation, "result": result}
    return metrics.registry.get_sample_value("blox_channel_requests_total", labels) or 0.0


def moved(metrics: Metrics, direction: str) -> float:
    labels = {"channel": "a", "direction": direction}
    return metrics.registry.get_sample_value("blox_channel_bytes_total", labels) or 0.0


def test_calls_and_bytes_are_counted_in_both_directions(
    metrics: Metrics, opened: OpenChannel
) -> None:
    channel, deadline = opened.channel, Deadline(10.0)
    channel.put("k", Body(BYTES), sha256=SHA256, deadline=deadline)
    with channel.get("k", start=100, deadline=deadline) as chunks:
        assert b"".join(chunks) == BYTES[100:]
    assert [entry.key for entry in channel.list(deadline=deadline)] == ["k"]
    assert (moved(metrics, "out"), moved(metrics, "in")) == (1000.0, 900.0)
    for operation in ("put", "get", "list"):
        assert requests(metrics, operation) == 1.0


def test_parts_are_counted_when_they_have_arrived(metrics: Metrics, opened: OpenChannel) -> None:
    channel, deadline = opened.channel, Deadline(10.0)
    upload_id = channel.create_upload("k", deadline=deadline)
    part = channel.put_part("k", upload_id, 1, Body(BYTES), offset=0, deadline=deadline)
    channel.complete_upload("k", upload_id, [part], deadline=deadline)
    assert moved(metrics, "out") == 1000.0
    assert requests(metrics, "complete_upload") == 1.0


def test_an_error_is_counted_by_its_code_and_goes_through(
    metrics: Metrics, opened: OpenChannel
) -> None:
    with (
        pytest.raises(ObjectMissing),
        opened.channel.get("nothing", deadline=Deadline(10.0)),
    ):
        pass
    assert requests(metrics, "get", ObjectMissing.code) == 1.0
    assert requests(metrics, "get") == 0.0


def test_a_reader_that_has_seen_enough_is_no_error(metrics: Metrics, opened: OpenChannel) -> None:
    channel, deadline = opened.channel, Deadline(10.0)
    for key in ("k1", "k2"):
        channel.put(key, Body(BYTES), sha256=SHA256, deadline=deadline)
    listing = channel.list(deadline=deadline)
    next(listing)
    listing.close()  # type: ignore[attr-defined]
    assert requests(metrics, "list") == 1.0


def test_one_channel_is_opened_once_and_keeps_its_breaker(metrics: Metrics, tmp_path: Path) -> None:
    channels = ObservedChannels(ChannelMeter(metrics))
    spec = ChannelSpec("a", "file", {"root": str(tmp_path), "create": True})
    assert channels.open(spec) is channels.open(spec)
    assert channels.open(spec).breaker.ready()
