"""Live processes by their rows, and those that are gone."""

from __future__ import annotations

import datetime as dt

import sqlalchemy as sa

from shared.outbox.nodes import LiveNodes, NodeWriter, drop_old_nodes, live_nodes
from shared.outbox.schema import nodes
from tests.support.filling import clock
from tests.support.outbox import Bench


def _age(bench: Bench, node: str, seconds: float) -> None:
    past = clock(bench) - dt.timedelta(seconds=seconds)
    with bench.engine.begin() as connection:
        connection.execute(sa.update(nodes).where(nodes.c.node == node).values(last_seen=past))


def test_a_row_tells_what_a_process_does(bench: Bench) -> None:
    writer = NodeWriter(bench.context, region="eu", version="1.2")
    writer.write(role="producer")
    writer.write(
        role="worker",
        queues=["mail", "upload.eu"],
        threads=8,
        threads_busy=3,
        mean_seconds={"mail": 0.25},
    )
    (node,) = live_nodes(bench.context)
    assert node.name == bench.context.node
    assert (node.role, node.region, node.threads, node.threads_busy) == ("worker", "eu", 8, 3)
    assert node.queues == {"mail", "upload.eu"}
    assert node.mean_seconds == {"mail": 0.25}
    writer.remove()
    assert live_nodes(bench.context) == []
    # A late beat of another thread does not bring it back.
    writer.write(role="worker", queues=["mail"], threads=8)
    assert live_nodes(bench.context) == []


def test_the_filler_is_woken_for_a_window_that_opens(bench: Bench) -> None:
    bell, client = bench.context.scripts.fill_bell_key, bench.context.redis
    writer = NodeWriter(bench.context)
    writer.write(role="producer")
    assert client.delete(bell) == 0
    writer.write(role="worker", queues=["mail"], threads=2)
    assert client.delete(bell) == 1
    writer.write(role="worker", queues=["mail"], threads=2)
    writer.write(role="worker", queues=[], threads=2)
    assert client.delete(bell) == 0


def test_who_was_not_seen_for_three_beats_is_not_alive(bench: Bench, other: Bench) -> None:
    NodeWriter(bench.context).write(role="worker", queues=["mail"], threads=2)
    NodeWriter(other.context).write(role="worker", queues=["mail"], threads=2)
    beat = bench.context.settings.node_seconds
    _age(bench, "node-1", 2.5 * beat)
    _age(bench, "node-2", 3.5 * beat)
    assert [node.name for node in live_nodes(bench.context)] == ["node-1"]


def test_consumers_and_producers_are_told_apart(bench: Bench, other: Bench) -> None:
    NodeWriter(bench.context).write(role="worker", queues=["mail"], threads=2)
    NodeWriter(other.context).write(role="scheduler")
    found = LiveNodes(bench.context)
    assert [node.name for node in found.consumers("mail")] == ["node-1"]
    assert found.consumers("upload") == []
    assert found.producers() == ["node-1"]


def test_old_rows_age_out_and_who_comes_back_keeps_its_row(bench: Bench, other: Bench) -> None:
    NodeWriter(bench.context).write(role="worker", queues=["mail"], threads=2)
    NodeWriter(other.context).write(role="producer")
    _age(bench, "node-1", 700)
    assert drop_old_nodes(bench.context) == 1
    assert [node.name for node in live_nodes(bench.context)] == ["node-2"]
