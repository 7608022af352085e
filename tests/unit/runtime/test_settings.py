"""Reading settings: names, groups, secret files, and a sentence for each fault."""

from __future__ import annotations

from pathlib import Path

import pydantic
import pytest

from shared.runtime.settings import (
    Settings,
    SettingsError,
    child_environment,
    load_settings,
    own_variables,
    unknown_variables,
)


def test_flat_and_nested_names_are_read() -> None:
    settings = load_settings(
        {
            "BLOX_DATABASE_URL": "mysql+pymysql://u:p@db/blox",
            "BLOX_WORKER__THREADS": "16",
            "BLOX_OUTBOX__LEASE_SECONDS": "4",
            "BLOX_OUTBOX__RENEW_SECONDS": "1",
            "BLOX_CHANNELS__EU-1__KIND": "s3",
            "BLOX_CHANNELS__EU-1__BUCKET": "main",
            "WORKER__THREADS": "99",
        }
    )
    assert settings.database_url == "mysql+pymysql://u:p@db/blox"
    assert settings.worker.threads == 16
    assert (settings.outbox.lease_seconds, settings.outbox.renew_seconds) == (4.0, 1.0)
    assert settings.channels["eu-1"].bucket == "main"


def test_overrides_win_over_the_environment() -> None:
    assert load_settings({"BLOX_NAMESPACE": "one"}, namespace="two").namespace == "two"


def test_every_number_of_the_outbox_is_a_setting() -> None:
    names = pydantic.TypeAdapter(type(Settings().outbox)).json_schema()["properties"]
    for name in names:
        value = getattr(Settings().outbox, name)
        assert load_settings({f"BLOX_OUTBOX__{name.upper()}": str(value)}).outbox == (
            Settings().outbox
        )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BLOX_WORKER__THREADS", "0"),
        ("BLOX_WORKER__THREADS", "many"),
        ("BLOX_WORKER__THREDS", "8"),
        ("BLOX_OUTBOX__LEESE_SECONDS", "8"),
        ("BLOX_API__PORT", "70000"),
        ("BLOX_NAMESPACE", "Not Good"),
        ("BLOX_DEPLOYMENT", "moon"),
        ("BLOX_GRACE_SECONDS", "inf"),
        ("BLOX_SWEEPS__MIN_AGE_SECONDS", "nan"),
        ("BLOX_API__MAX_METADATA_BYTES", "4096"),
        ("BLOX_FETCH__ALLOW", "10.0.0.0/8"),
        ("BLOX_FETCH__PORTS", "[80"),
    ],
)
def test_a_fault_names_its_variable(name: str, value: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({name: value})
    assert name in str(caught.value)


def test_all_faults_are_named_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"BLOX_WORKER__THREADS": "x", "BLOX_API__PORT": "y"})
    assert "BLOX_WORKER__THREADS" in str(caught.value)
    assert "BLOX_API__PORT" in str(caught.value)


def test_a_pair_that_breaks_the_outbox_is_refused() -> None:
    with pytest.raises(SettingsError, match="renew_seconds must be at most half"):
        load_settings({"BLOX_OUTBOX__LEASE_SECONDS": "4", "BLOX_OUTBOX__RENEW_SECONDS": "3"})


@pytest.mark.parametrize(
    "variables",
    [
        {"BLOX_API__MAX_OBJECT_BYTES": str(2 * 1024**4)},
        {
            "BLOX_STAGING__PART_BYTES": str(64 * 1024**2),
            "BLOX_STAGING__MEMORY_BYTES": str(16 * 1024**2),
            "BLOX_STAGING__DISK_BYTES": "0",
        },
        # Half of the memory is kept for what is sent from the disk.
        {"BLOX_API__MAX_OBJECT_BYTES": str(1024**4), "BLOX_STAGING__DISK_BYTES": "0"},
    ],
)
def test_the_largest_body_can_begin_in_a_bucket(variables: dict[str, str]) -> None:
    """Else every body of unknown size would find staging busy, for ever."""
    bucket = {"BLOX_STAGING__KIND": "s3", "BLOX_STAGING__BUCKET": "staging"}
    with pytest.raises(SettingsError, match="BLOX_STAGING__MEMORY_BYTES"):
        load_settings({**bucket, **variables})
    assert load_settings(variables).staging.kind == "file"
    assert load_settings(bucket).staging.kind == "s3"


def test_a_fault_never_shows_a_secret() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"BLOX_SECRET_KEY": "hunter2", "BLOX_API__PORT": "x"})
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(load_settings({"BLOX_SECRET_KEY": "hunter2"}))


def test_files_of_the_secrets_folder_are_settings_below_the_environment(tmp_path: Path) -> None:
    (tmp_path / "BLOX_SECRET_KEY").write_text("from-file\n")
    (tmp_path / "BLOX_REDIS_URL").write_text("redis://file")
    (tmp_path / "OTHER").write_text("ignored")
    settings = load_settings(
        {"BLOX_SECRETS_DIR": str(tmp_path), "BLOX_REDIS_URL": "redis://environment"}
    )
    assert settings.secret_key.get_secret_value() == "from-file"
    assert settings.redis_url == "redis://environment"


def test_a_missing_secrets_folder_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="BLOX_SECRETS_DIR"):
        load_settings({"BLOX_SECRETS_DIR": str(tmp_path / "nowhere")})


def test_kubernetes_is_noticed_and_can_be_denied() -> None:
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert load_settings(pod).deployment == "kubernetes"
    assert load_settings({**pod, "BLOX_DEPLOYMENT": "host"}).deployment == "host"
    assert load_settings({}).deployment == "host"


def test_names_that_no_setting_has_are_found() -> None:
    variables = {
        "BLOX_WOKER__THREADS": "1",
        "BLOX_WORKER__THREADS": "1",
        "BLOX_SECRETS_DIR": "x",
        "HOME": "/",
    }
    assert unknown_variables(variables) == ["BLOX_WOKER__THREADS"]


def test_a_child_gets_only_the_given_variables_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOX_NAMESPACE", "mine")
    monkeypatch.setenv("BLOX_REGIONS", "eu")
    monkeypatch.setenv("ELSEWHERE", "kept")
    child = child_environment({"BLOX_NAMESPACE": "theirs"})
    assert child["BLOX_NAMESPACE"] == "theirs"
    assert "BLOX_REGIONS" not in child
    assert child["ELSEWHERE"] == "kept"
    assert own_variables()["BLOX_REGIONS"] == "eu"


def test_settings_made_by_hand_read_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOX_NAMESPACE", "mine")
    assert Settings().namespace == "blox"
