"""Blocking work of requests: bounded, never abandoned."""

from __future__ import annotations

import asyncio
import threading

import pytest
import sqlalchemy as sa

from services.api.work import WAITING_PER_THREAD, Busy, Work
from shared.core.errors import UnavailableError
from shared.outbox.db import Database


@pytest.fixture
def database(database_url: str) -> Database:
    return Database(sa.create_engine(database_url))


def test_more_than_can_wait_is_refused_at_once(database: Database) -> None:
    async def scenario() -> None:
        work = Work(database, threads=1)
        gate = threading.Event()
        waiting = [asyncio.create_task(work.call(gate.wait)) for _ in range(1 + WAITING_PER_THREAD)]
        await asyncio.sleep(0)  # let each of them get in line
        with pytest.raises(Busy):
            await work.files(gate.wait)
        gate.set()
        await asyncio.gather(*waiting)
        assert await work.call(lambda: 7) == 7

    asyncio.run(scenario())


def test_request_whose_answer_has_begun_waits_however_many_do(database: Database) -> None:
    async def scenario() -> None:
        work = Work(database, threads=1)
        gate = threading.Event()
        waiting = [asyncio.create_task(work.call(gate.wait)) for _ in range(1 + WAITING_PER_THREAD)]
        await asyncio.sleep(0)
        assert await work.more_files(lambda: 7) == 7
        gate.set()
        await asyncio.gather(*waiting)

    asyncio.run(scenario())


def test_cancelled_request_waits_for_the_end_of_its_work(database: Database) -> None:
    async def scenario() -> list[str]:
        work = Work(database, threads=1)
        begun, gate, done = threading.Event(), threading.Event(), []

        def commit() -> None:
            begun.set()
            gate.wait()
            done.append("committed")

        task = asyncio.create_task(work.call(commit))
        await asyncio.to_thread(begun.wait)
        for _ in range(3):
            task.cancel()
            assert not (await asyncio.wait([task], timeout=0.05))[0], "it did not wait"
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return done

    assert asyncio.run(scenario()) == ["committed"]


def test_cancelled_request_whose_work_has_not_begun_waits_for_nothing(database: Database) -> None:
    async def scenario() -> list[str]:
        work = Work(database, threads=1)
        begun, gate, done = threading.Event(), threading.Event(), []

        def hold() -> None:
            begun.set()
            gate.wait()

        first = asyncio.create_task(work.call(hold))
        await asyncio.to_thread(begun.wait)
        second = asyncio.create_task(work.call(lambda: done.append("never")))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        gate.set()
        await first
        assert await work.call(lambda: 7) == 7
        return done

    assert asyncio.run(scenario()) == []


def test_clean_up_runs_although_its_request_was_cancelled(database: Database) -> None:
    async def scenario() -> list[str]:
        work = Work(database, threads=1)
        done: list[str] = []
        task = asyncio.create_task(work.clean_up(lambda: done.append("clean")))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return done

    assert asyncio.run(scenario()) == ["clean"]


def test_database_that_does_not_answer_is_unavailable(database: Database) -> None:
    async def scenario() -> None:
        work = Work(database, threads=1)
        await work.read(lambda session: session.execute(sa.text("SELECT 1")).scalar_one())
        with pytest.raises(UnavailableError):
            await work.read(lambda _: _lost())

    asyncio.run(scenario())


def _lost() -> None:
    raise sa.exc.TimeoutError("no connection came free")
