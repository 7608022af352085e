"""How big a window is, and how full."""

from __future__ import annotations

import pytest

from shared.outbox.nodes import Node
from shared.outbox.settings import OutboxSettings
from shared.outbox.window import Fullness, Place, Places, places_with_rows, window_size
from tests.support.filling import QUEUE, add, consume
from tests.support.outbox import Bench

SETTINGS = OutboxSettings()


def _node(threads: int, mean: float | None) -> Node:
    means = {} if mean is None else {QUEUE: mean}
    return Node("n", "", "worker", frozenset([QUEUE]), threads, 0, means)


@pytest.mark.parametrize(
    ("threads", "mean", "size"),
    [
        (8, 1.0, 32),  # 8 threads x 4 s / 1 s
        (8, 60.0, 16),  # never less than two for each thread
        (8, 0.00001, 8000),  # never more than a thousand for each thread
        (8, None, 640),  # not measured yet
    ],
)
def test_a_window_is_the_work_of_four_seconds(threads: int, mean: float | None, size: int) -> None:
    assert window_size([_node(threads, mean)], QUEUE, SETTINGS) == size


def test_consumers_add_up_and_nobody_means_nothing() -> None:
    assert window_size([_node(8, 1.0), _node(2, 0.5)], QUEUE, SETTINGS) == 48
    assert window_size([], QUEUE, SETTINGS) == 0


def test_fullness_is_the_larger_of_list_and_rows(bench: Bench) -> None:
    place = Place(QUEUE, "")
    add(bench, 3, state="dispatching", dispatch_id="a")
    add(bench, 4, state="dispatched", dispatch_id="b")
    add(bench, 5, state="running")
    add(bench, 2, state="dispatched", region="eu")
    assert Fullness(bench.context, place).read(2) == 7
    assert Fullness(bench.context, place).read(7) == 7
    assert Fullness(bench.context, place).read(11) == 11
    assert Fullness(bench.context, Place(QUEUE, "eu")).read(0) == 2


def test_between_two_counts_the_list_tells_what_left(bench: Bench) -> None:
    fullness = Fullness(bench.context, Place(QUEUE, ""))
    add(bench, 10, state="dispatched", dispatch_id="b")
    assert fullness.read(8) == 10
    assert fullness.read(5) == 7


def test_rows_below_the_floor_are_counted_when_they_are_claimed(bench: Bench) -> None:
    fullness = Fullness(bench.context, Place(QUEUE, ""))
    add(bench, 2, state="dispatched", dispatch_id="b")
    assert fullness.read(1) == 2
    (old,) = add(bench, age_seconds=3600)
    bench.set(old, state="dispatching", dispatch_id="c")
    fullness.claimed(bench.columns(old)["due_at"])
    # An emptied list is counted again at once.
    assert fullness.read(0) == 3


def test_places_are_those_with_rows_kinds_or_consumers(bench: Bench) -> None:
    add(bench, 2, region="eu")
    add(bench, 2, queue="upload", state="completed")
    consume(bench, queues=["review.us"])
    assert places_with_rows(bench.context) == [Place(QUEUE, "eu"), Place("upload", "")]
    from shared.outbox.nodes import live_nodes

    assert Places(bench.context).get(live_nodes(bench.context)) == [
        Place(QUEUE, "eu"),
        Place("review", "us"),
        Place("upload", ""),
    ]
