"""Pairs of settings that are refused, and those that are only warned of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shared.outbox.settings import OutboxSettings
from shared.runtime.problems import problems
from shared.runtime.settings import (
    MIB,
    ApiSettings,
    ChannelSettings,
    DatabaseSettings,
    HealthSettings,
    Settings,
    SettingsError,
    StagingSettings,
    SweepSettings,
    WorkerSettings,
)

KEY = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
SERVER = "mysql+pymysql://u:p@db/blox"
BUCKET = {
    "kind": "s3",
    "endpoint": "http://s3",
    "bucket": "b",
    "access_key": "a",
    "secret_key": "s",
}


def good(**changes: Any) -> Settings:
    return Settings.model_validate({"secret_key": KEY, **changes})


def test_the_defaults_with_a_key_have_no_fault() -> None:
    found = problems(good())
    assert found.errors == ()
    assert found.warnings == ()
    found.refuse()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Settings(), "BLOX_SECRET_KEY is not set"),
        (good(secret_key="short"), "BLOX_SECRET_KEY is not 32 bytes"),
        (good(database_url="postgresql://db/blox"), "BLOX_DATABASE_URL"),
        (good(database_url="sqlite:///:memory:"), "names no file"),
        (good(database_url="sqlite"), "BLOX_DATABASE_URL is not an address"),
        (good(database_url="mysql+asyncmy://u:p@db/blox"), "no driver for mysql+asyncmy:// is"),
        (good(deployment="kubernetes", database_url=SERVER), "BLOX_HEALTH__HOST"),
        (good(redis_url="amqp://mq"), "BLOX_REDIS_URL"),
        (good(deployment="kubernetes"), "SQLite is a file of one machine"),
        (good(deployment="kubernetes", database_url=SERVER), "BLOX_STAGING__SHARED"),
        (good(database=DatabaseSettings(read_timeout_seconds=10)), "READ_TIMEOUT_SECONDS"),
        (good(api=ApiSettings(port=9090)), "are the same"),
        (good(outbox=OutboxSettings(complete_seconds=60)), "COMPLETE_SECONDS"),
        (good(channels={"a": ChannelSettings(kind="file")}), "BLOX_CHANNELS__A__ROOT"),
        (
            good(staging=StagingSettings(kind="s3", endpoint="http://s3")),
            "BLOX_STAGING__BUCKET, BLOX_STAGING__ACCESS_KEY, BLOX_STAGING__SECRET_KEY",
        ),
        (
            good(staging={**BUCKET, "part_bytes": 16 * MIB, "memory_bytes": 16 * MIB}),
            "BLOX_STAGING__MEMORY_BYTES",
        ),
        (
            good(staging=BUCKET, channels={"a": ChannelSettings.model_validate(BUCKET)}),
            "BLOX_STAGING__BUCKET is that of channel a",
        ),
        (
            good(channels={"b": ChannelSettings(kind="s3", endpoint="http://s3")}),
            "BLOX_CHANNELS__B__BUCKET, BLOX_CHANNELS__B__ACCESS_KEY, BLOX_CHANNELS__B__SECRET_KEY",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_a_sentence(settings: Settings, words: str) -> None:
    found = problems(settings)
    assert any(words in error for error in found.errors), found.errors
    with pytest.raises(SettingsError, match=r"BLOX_|SQLite"):
        found.refuse()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            good(worker=WorkerSettings(threads=16), database=DatabaseSettings(pool_size=10)),
            "16 worker threads share a pool of 10",
        ),
        (good(shutdown_seconds=2), "shutdown of 2 s"),
        (good(outbox=OutboxSettings(lease_seconds=2, renew_seconds=1)), "survives only one"),
        (good(grace_seconds=0), "BLOX_GRACE_SECONDS is 0"),
        (
            good(database_url=SERVER, staging=StagingSettings(max_age_seconds=60)),
            "slow uploads may still be writing",
        ),
        (good(sweeps=SweepSettings(tombstone_seconds=0)), "TOMBSTONE_SECONDS"),
    ],
)
def test_what_is_risky_is_warned_of_and_not_refused(settings: Settings, words: str) -> None:
    found = problems(settings)
    assert found.errors == ()
    assert any(words in warning for warning in found.warnings), found.warnings


def test_unknown_variables_are_warned_of() -> None:
    found = problems(good(), unknown=["BLOX_WOKER__THREADS"])
    assert any("BLOX_WOKER__THREADS" in warning for warning in found.warnings)


def test_a_pod_with_shared_staging_and_a_server_is_fine() -> None:
    settings = good(
        deployment="kubernetes",
        database_url=SERVER,
        staging=StagingSettings(path=Path("staging"), shared=True),
        health=HealthSettings(host="0.0.0.0", port=9101),
    )
    assert problems(settings).errors == ()


def test_pods_with_staging_in_a_bucket_need_no_common_disk() -> None:
    settings = good(
        deployment="kubernetes",
        database_url=SERVER,
        staging=BUCKET,
        health=HealthSettings(host="0.0.0.0", port=9101),
    )
    assert problems(settings).errors == ()
