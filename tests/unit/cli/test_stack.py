"""Which stack a command means, and what a stack's folder holds."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from services.cli.embedded import Layout, free_port, stack_variables, write_private
from services.cli.stack import stack_settings, stack_settings_variables
from shared.core.errors import ConflictError, InvalidError
from shared.runtime.settings import SettingsError


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("BLOX_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder as a stack that has stopped leaves it."""
    layout = Layout(tmp_path / "stack")
    layout.take()
    layout.release()
    layout.database.touch()
    layout.secret_key()
    (layout.redis / "redis.conf").write_text("bind 127.0.0.1\nport 23456\n")
    return layout.root


def test_the_environments_database_wins(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOX_DATABASE_URL", "mysql+pymysql://u@h/d")
    monkeypatch.setenv("BLOX_WORKER__THREADS", "3")
    assert stack_settings_variables(folder) == {
        "BLOX_DATABASE_URL": "mysql+pymysql://u@h/d",
        "BLOX_WORKER__THREADS": "3",
    }


def test_without_one_it_is_the_folders_stack_with_its_own_redis_and_key(folder: Path) -> None:
    settings = stack_settings(folder)
    layout = Layout(folder)
    assert settings.database_url == f"sqlite:///{layout.database}"
    password = layout.redis_password()
    assert settings.redis_url == f"redis://:{password}@127.0.0.1:23456/0"
    assert settings.secret_key.get_secret_value() == layout.secret_key()
    assert settings.staging.path == layout.staging
    assert set(settings.channels) == {"a", "b"}


def test_a_folder_without_a_stack_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="`blox up` makes one"):
        stack_settings_variables(tmp_path)
    assert list(tmp_path.iterdir()) == [], "looking leaves nothing behind"


def test_settings_that_cannot_be_used_are_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLOX_SECRET_KEY", "short")
    with pytest.raises(SettingsError, match="not 32 bytes"):
        stack_settings(folder)


def test_a_folder_is_for_one_stack_at_a_time(folder: Path) -> None:
    first, second = Layout(folder), Layout(folder)
    first.take()
    with pytest.raises(ConflictError, match="another stack runs"):
        second.take()
    first.release()
    second.take()
    second.release()


def test_what_cannot_be_a_folder_is_told(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for path in (file, file / "below"):
        with pytest.raises(InvalidError, match="cannot be the folder of a stack"):
            Layout(path).take()


def test_keys_are_made_once_and_for_their_owner_alone(folder: Path) -> None:
    layout = Layout(folder)
    assert layout.secret_key() == Layout(folder).secret_key()
    assert layout.redis_password() == Layout(folder).redis_password()
    path = folder / "private"
    write_private(path, "one")
    write_private(path, "two")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("two", 0o600)


def test_what_is_given_wins_and_channels_that_are_named_replace_a_and_b(folder: Path) -> None:
    given = {
        "BLOX_CHANNELS__DISK__KIND": "file",
        "BLOX_CHANNELS__CLOUD__KIND": "s3",
        "BLOX_SHUTDOWN_SECONDS": "5",
        "BLOX_STOP_WITH_PARENT": "false",
    }
    made = stack_variables(Layout(folder), given, redis_url="redis://r", is_for_people=True)
    assert made["BLOX_CHANNELS__DISK__ROOT"] == str(Layout(folder).channels / "disk")
    assert "BLOX_CHANNELS__CLOUD__ROOT" not in made
    assert "BLOX_CHANNELS__A__KIND" not in made
    assert (made["BLOX_SHUTDOWN_SECONDS"], made["BLOX_LOG__FORMAT"]) == ("5", "console")
    assert made["BLOX_STOP_WITH_PARENT"] == "true", "children never outlive the stack"


def test_a_wanted_port_is_taken_when_it_is_free() -> None:
    port = free_port()
    assert free_port(port) == port
