"""The engine of a process: pool, time limits, sessions."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from shared.runtime.database import build_engine
from shared.runtime.settings import DatabaseSettings, Settings


def test_sessions_have_the_settings_that_the_protocols_need(database_url: str) -> None:
    engine = build_engine(Settings(database_url=database_url), threads=2)
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        else:
            level = connection.exec_driver_sql("SELECT @@tx_isolation").scalar()
            assert level == "READ-COMMITTED"
            assert connection.exec_driver_sql("SELECT @@time_zone").scalar() == "+00:00"
    engine.dispose()


def test_the_folder_of_a_sqlite_file_is_made(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'deep' / 'down' / 'blox.sqlite3'}"
    engine = build_engine(Settings(database_url=url), threads=1)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1
    engine.dispose()


def test_waiting_for_a_connection_is_measured_and_bounded(database_url: str) -> None:
    waits: list[float] = []
    limits = DatabaseSettings(pool_size=1, pool_wait_seconds=0.2)
    engine = build_engine(
        Settings(database_url=database_url, database=limits), threads=1, observe_wait=waits.append
    )
    with engine.connect(), pytest.raises(sa.exc.TimeoutError), engine.connect():
        pass
    assert len(waits) == 2
    assert waits[1] >= 0.2
    engine.dispose()


def test_the_pool_has_room_for_every_thread_at_once(database_url: str) -> None:
    threads = 4
    engine = build_engine(Settings(database_url=database_url), threads=threads)
    reader = engine.execution_options(read_only=True)
    together = threading.Barrier(threads)
    answers: list[int] = []

    def ask() -> None:
        with reader.connect() as connection:
            together.wait(10.0)
            answers.append(int(connection.execute(sa.text("SELECT 1")).scalar_one()))

    running = [threading.Thread(target=ask) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(15.0)
    assert answers == [1] * threads
    engine.dispose()
