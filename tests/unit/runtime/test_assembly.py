"""The parts of a process, wired: what happens in them is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.catalog.channels import ChannelInput, put_channel
from shared.core.errors import UnavailableError
from shared.runtime.assembly import assemble
from shared.runtime.metrics import Metrics
from shared.runtime.settings import Settings

KEY = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="


def test_the_parts_share_settings_engine_and_metrics(blox_url: str, tmp_path: Path) -> None:
    metrics = Metrics("upload")
    settings = Settings.model_validate(
        {
            "database_url": blox_url,
            "redis_url": "redis://127.0.0.1:1/0",
            "secret_key": KEY,
            "namespace": "mine",
            "staging": {"path": tmp_path / "staging"},
        }
    )
    parts = assemble(settings, metrics, threads=2)
    try:
        assert parts.outbox.context.namespace == "mine"
        assert parts.catalogue.kinds.upload_store.name == "upload.store"
        parts.outbox.context.db.run_session(
            lambda session: put_channel(
                session,
                ChannelInput(
                    name="a",
                    kind="file",
                    settings={"root": str(tmp_path / "a")},
                    credentials={},
                ),
                secrets=parts.secrets,
            )
        )
        for _ in range(2):
            assert parts.channels.open("a").name == "a"
        with pytest.raises(UnavailableError):
            parts.channels.open("b")
    finally:
        parts.outbox.close(1.0)
        parts.engine.dispose()

    def events(event: str) -> float | None:
        labels = {"cache": "channels", "event": event}
        return metrics.registry.get_sample_value("blox_cache_events_total", labels)

    assert events("load") == 1.0
    assert (events("hit") or 0.0) >= 1.0
    waits = metrics.registry.get_sample_value("blox_database_pool_wait_seconds_count")
    assert (waits or 0.0) >= 2.0
