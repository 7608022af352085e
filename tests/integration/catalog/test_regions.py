"""Where the work of a bucket goes: its region, or elsewhere after a drain or without consumers."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.buckets import BucketSpec, put_bucket
from shared.catalog.draining import move_stragglers, move_waiting
from shared.catalog.models import Bucket, Location, RegionRow, utc_now
from shared.catalog.regions import drain, list_regions, region_of, region_of_content, reopen
from shared.catalog.restores.losses import FoundBy, report_loss
from shared.core.clock import Deadline
from shared.core.errors import ConflictError, InvalidError
from shared.outbox.nodes import NodeWriter
from shared.outbox.schema import consumed, tasks
from tests.support.catalogue import TENANT, World


@pytest.fixture
def eu(world: World) -> int:
    """A bucket of the region eu that falls back after a minute."""
    world.bucket()
    spec = BucketSpec(channels=["a"], region="eu", region_fallback_seconds=60)
    return world.run(lambda session: put_bucket(session, TENANT, "eu-photos", spec).bucket.id)


def place(world: World, bucket_id: int, queue: str = "upload") -> str:
    def read(session: Session) -> str:
        bucket = session.get(Bucket, bucket_id)
        assert bucket is not None
        return region_of(session, bucket, queue)

    return world.run(read)


def test_work_goes_to_the_region_while_somebody_was_there_lately(world: World, eu: int) -> None:
    assert place(world, eu) == "", "nobody was ever there"
    NodeWriter(world.outbox.context).write(role="worker", queues=["upload.eu"], threads=1)
    assert place(world, eu) == "eu"
    assert place(world, eu, "review") == "", "that worker consumes another queue"
    put = world.put(eu, "k")
    with world.engine.begin() as connection:
        region = connection.scalar(sa.select(tasks.c.region).where(tasks.c.id == put.task_id))
        connection.execute(sa.update(consumed).values(last_seen=utc_now(-61)))
    assert region == "eu"
    assert place(world, eu) == ""


def test_the_work_for_a_content_goes_where_its_last_bucket_is(world: World, eu: int) -> None:
    spec = BucketSpec(channels=["a"], region="eu")
    world.run(lambda session: put_bucket(session, TENANT, "eu-photos", spec))
    world.put_stored(eu, "k")
    location = world.all(Location)[0]
    world.run(
        lambda session: report_loss(
            session, world.catalogue, location_id=location.id, found_by=FoundBy.READ
        )
    )
    assert [one.region for one in map(world.task, world.open_tasks("restore.blob"))] == ["eu"]
    world.delete(eu, "k")
    assert [one.region for one in map(world.task, world.open_tasks("delete.blob"))] == ["eu"]
    assert world.run(lambda session: region_of_content(session, 0, "delete")) == ""


def test_without_leave_it_waits_for_its_region(world: World, eu: int) -> None:
    spec = BucketSpec(channels=["a"], region="eu")
    world.run(lambda session: put_bucket(session, TENANT, "eu-photos", spec))
    assert place(world, eu) == "eu"


def test_a_drained_region_has_its_work_elsewhere_until_it_is_opened_again(
    world: World, eu: int
) -> None:
    world.run(lambda session: drain(session, "eu", to="us", force=True))
    assert place(world, eu) == "us"
    assert [(one.name, one.drained_to, one.buckets) for one in world.run(list_regions)] == [
        ("eu", "us", 1)
    ]
    with pytest.raises(ConflictError):
        world.run(lambda session: drain(session, "us", to="eu", force=True))
    for region, to in (("", "us"), ("us", "us")):
        with pytest.raises(InvalidError):
            world.run(lambda session, pair=(region, to): drain(session, pair[0], to=pair[1]))
    world.run(lambda session: reopen(session, "eu"))
    NodeWriter(world.outbox.context).write(role="worker", queues=["upload.eu"], threads=1)
    assert place(world, eu) == "eu"


def test_a_drain_to_where_nobody_does_the_same_work_is_refused_unless_forced(
    world: World, eu: int
) -> None:
    def refusal() -> ConflictError:
        with pytest.raises(ConflictError) as refused:
            world.run(lambda session: drain(session, "eu", to="us"))
        assert refused.value.code == "region_unconsumed"
        assert place(world, eu) != "us"
        return refused.value

    assert "nobody consumes anything in region us" in str(refusal())
    writer = NodeWriter(world.outbox.context)
    writer.write(role="worker", queues=["upload.eu", "replica.eu", "upload.us"], threads=1)
    assert refusal().facts["queues"] == ["replica"]
    writer.write(role="worker", queues=["replica.us"], threads=1)
    world.run(lambda session: drain(session, "eu", to="us"))
    assert place(world, eu) == "us"
    with world.engine.begin() as connection:
        connection.execute(sa.update(consumed).values(last_seen=utc_now(-61)))
    world.run(lambda session: drain(session, "eu", to="us"))
    world.run(lambda session: reopen(session, "eu"))
    refusal()
    with pytest.raises(ConflictError, match="in the base queues"):
        world.run(lambda session: drain(session, "eu"))


def test_what_was_drained_into_a_region_goes_on_when_that_is_drained(world: World, eu: int) -> None:
    world.run(lambda session: drain(session, "eu", to="us", force=True))
    world.run(lambda session: drain(session, "us", to="asia", force=True))
    assert place(world, eu) == "asia"
    world.run(lambda session: reopen(session, "us"))
    assert place(world, eu) == "us"


def test_a_ring_of_drains_ends_in_the_base_queue(world: World, eu: int) -> None:
    with world.engine.begin() as connection:
        for name, to in (("eu", "us"), ("us", "eu")):
            connection.execute(
                sa.insert(RegionRow).values(name=name, drained_to=to, updated_at=utc_now())
            )
    assert place(world, eu) == ""


def test_a_drain_is_over_when_nothing_waits_and_nothing_runs(world: World, eu: int) -> None:
    NodeWriter(world.outbox.context).write(role="worker", queues=["upload.eu"], threads=1)
    first, second = world.put(eu, "one"), world.put(eu, "two")
    with world.engine.begin() as connection:
        connection.execute(
            sa.update(tasks).where(tasks.c.id == second.task_id).values(state="running", owner="o")
        )
    world.run(lambda session: drain(session, "eu", force=True))
    context = world.outbox.context

    state = move_waiting(context, "eu", to="", deadline=Deadline(10))

    assert (state.moved, state.waiting, state.running, state.is_over) == (1, 0, 1, False)
    with world.engine.begin() as connection:
        region = connection.scalar(sa.select(tasks.c.region).where(tasks.c.id == first.task_id))
        connection.execute(
            sa.update(tasks).where(tasks.c.id == second.task_id).values(state="completed")
        )
    assert region == ""
    assert move_waiting(context, "eu", to="", deadline=Deadline(10)).is_over


def test_what_comes_into_a_drained_region_all_the_same_is_moved_on(world: World, eu: int) -> None:
    NodeWriter(world.outbox.context).write(role="worker", queues=["upload.eu"], threads=1)
    context = world.outbox.context
    late, other = world.put(eu, "late"), world.put(eu, "runs")
    with world.engine.begin() as connection:
        connection.execute(
            sa.update(tasks).where(tasks.c.id == other.task_id).values(state="running", owner="o")
        )
    assert move_stragglers(context, deadline=Deadline(10)) == {}, "nothing is drained"
    world.run(lambda session: drain(session, "eu", to="us", force=True))
    world.run(lambda session: drain(session, "us", to="asia", force=True))

    assert move_stragglers(context, deadline=Deadline(10)) == {"eu": 1}

    with world.engine.begin() as connection:
        rows = connection.execute(sa.select(tasks.c.id, tasks.c.region)).all()
        regions = {row.id: row.region for row in rows}
    assert (regions[late.task_id], regions[other.task_id]) == ("asia", "eu")
    assert move_stragglers(context, deadline=Deadline(10)) == {}
