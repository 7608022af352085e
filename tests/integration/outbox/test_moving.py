"""What waits in one region moves to another, whatever is under way; what runs stays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from shared.outbox.filler import Filler
from shared.outbox.histories import history_breaches
from shared.outbox.moving import count_left, move_page
from shared.outbox.nodes import NodeWriter
from shared.outbox.scans import Scans
from shared.outbox.schema import consumed, tasks
from shared.outbox.window import Place
from tests.support.filling import QUEUE, TELLING, add, clock, listed
from tests.support.outbox import Bench

EU, BASE = Place(QUEUE, "eu"), Place(QUEUE, "")


@pytest.fixture
def filler(bench: Bench) -> Iterator[Filler]:
    made = Filler(bench.context)
    yield made
    made.close()


def consume(bench: Bench, *names: str) -> None:
    NodeWriter(bench.context).write(role="worker", queues=names, threads=4)


def regions(bench: Bench) -> dict[int, str]:
    with bench.engine.connect().execution_options(read_only=True) as connection:
        query = sa.select(tasks.c.id, tasks.c.region)
        return {int(row[0]): str(row[1]) for row in connection.execute(query)}


def move_all(bench: Bench, region: str) -> int:
    moved = 0
    while count := move_page(bench.context, EU, region):
        moved += count
    return moved


def test_everything_that_waits_moves_and_what_runs_or_has_ended_stays(bench: Bench) -> None:
    waiting = [
        *add(bench, 3, region="eu"),
        *add(bench, 2, region="eu", state="scheduled"),
        *add(bench, 1, region="eu", state="blocked"),
        *add(
            bench, 1, region="eu", state="dispatching", dispatch_id="d1", lease_until=clock(bench)
        ),
        *add(bench, 1, region="eu", state="dispatched", dispatch_id="d2", lease_until=clock(bench)),
    ]
    staying = [
        *add(bench, 1, region="eu", state="running", owner="o", fence=1, lease_until=clock(bench)),
        *add(bench, 1, region="eu", state="completed"),
        *add(bench, 1, region="us"),
    ]

    assert move_all(bench, "") == len(waiting)

    found = regions(bench)
    assert {found[task_id] for task_id in waiting} == {""}
    assert [found[task_id] for task_id in staying] == ["eu", "eu", "us"]
    left = count_left(bench.context, EU)
    assert (left.waiting, left.running) == (0, 1)
    states = [bench.read(task_id).state for task_id in waiting]
    assert states == ["pending"] * 3 + ["scheduled"] * 2 + ["blocked"] + ["pending"] * 2
    assert {bench.columns(task_id)["dispatch_id"] for task_id in waiting} == {None}


def test_what_is_due_when_it_moves_is_found_by_the_next_scan(bench: Bench) -> None:
    scans = Scans(bench.context, bench.context.db.line())
    us = Place(QUEUE, "us")
    assert scans.due([us]) == 0, "its bound is at the clock now"
    (moved,) = add(bench, 1, region="eu", state="scheduled", age_seconds=60)
    assert move_page(bench.context, EU, "us") == 1

    assert scans.due([us]) == 1, "or it waits for the scan without a bound"

    assert bench.read(moved).state == "pending"


def test_what_was_on_its_way_is_dispatched_in_its_new_region(bench: Bench, filler: Filler) -> None:
    bench.context.kinds.register(TELLING)
    consume(bench, "mail.eu", "mail")
    ids = add(bench, 2, region="eu", kind=TELLING.name)
    assert filler.run_once() == 2
    assert len(bench.context.scripts.fetch("mail.eu", 1)) == 1

    assert move_all(bench, "") == 2

    assert bench.context.scripts.fetch("mail.eu", 10) == []
    assert filler.run_once() == 2
    assert len(listed(bench)) == 2
    assert {bench.read(task_id).state for task_id in ids} == {"dispatched"}
    with sa.orm.Session(bench.engine) as session:
        assert list(history_breaches(session, before=clock(bench))) == []


@pytest.mark.databases("mariadb")  # SQLite has one writer
def test_rows_that_somebody_holds_are_left_for_the_next_call(bench: Bench) -> None:
    held, free = add(bench, 2, region="eu")
    with bench.engine.begin() as connection:
        connection.execute(sa.select(tasks).where(tasks.c.id == held).with_for_update())
        assert move_all(bench, "us") == 1
        assert count_left(bench.context, EU).waiting == 1
    assert move_all(bench, "us") == 1
    assert set(regions(bench).values()) == {"us"}
    assert free in regions(bench)


def test_a_worker_says_which_places_it_consumes(bench: Bench) -> None:
    consume(bench, "mail", "mail.eu")
    NodeWriter(bench.context).write(role="producer", queues=(), threads=0)
    with bench.engine.connect().execution_options(read_only=True) as connection:
        rows = connection.execute(sa.select(consumed.c.queue, consumed.c.region)).all()
    assert sorted(map(tuple, rows)) == [(QUEUE, ""), (QUEUE, "eu")]
