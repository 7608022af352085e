"""The memory that bodies share on their way to an object store: bounded, fair, and never stuck."""

from __future__ import annotations

import random

import pytest

from shared.storage.staging_memory import GRAIN_BYTES, BodyTooSlow, Memory, Share, StagingBusy

TOTAL = 8 * GRAIN_BYTES
PART = 4 * GRAIN_BYTES


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Bodies:
    """Bodies of one process with a clock that the test moves."""

    def __init__(self, total_bytes: int = TOTAL) -> None:
        self.clock = Clock()
        self.memory = Memory(total_bytes, slow_seconds=30.0, clock=self.clock)
        self.evicted: list[Share] = []

    def body(self) -> Share:
        share = self.memory.share(on_evicted=lambda: self.evicted.append(share))
        return share

    def full(self, count: int, *, grains: int) -> list[Share]:
        made = [self.body() for _ in range(count)]
        for share in made:
            assert share.room(0, grains * GRAIN_BYTES) is None
        return made


def test_a_body_takes_what_it_fills_and_no_more() -> None:
    bodies = Bodies()
    many = bodies.full(7, grains=1)
    assert all(share.filling_bytes == GRAIN_BYTES for share in many)
    # What was granted is used up before more is taken.
    assert many[0].room(10, GRAIN_BYTES - 10) is None
    assert many[0].filling_bytes == GRAIN_BYTES
    assert many[0].room(GRAIN_BYTES, 1) is None
    assert many[0].filling_bytes == 2 * GRAIN_BYTES


def test_who_waits_is_served_in_turn() -> None:
    bodies = Bodies()
    (large,) = bodies.full(1, grains=8)
    first, second, third = (bodies.body() for _ in range(3))
    # The first may go on all the same, so that somebody always can.
    assert first.room(0, 1) is None
    waits = [share.room(0, 1) for share in (second, third)]
    assert [wait is None or wait.done() for wait in waits] == [False, False]
    assert second.room(0, 1) is waits[0], "who asks again keeps its place"
    first.close()
    assert [wait.done() for wait in waits if wait] == [True, False]
    large.sent(large.send())
    assert [wait.done() for wait in waits if wait] == [True, True]
    assert second.room(0, 1) is None


def test_bodies_that_all_need_more_come_to_their_ends() -> None:
    """Each has half a part, together they have everything: one after the other goes on."""
    bodies = Bodies()
    halves = bodies.full(4, grains=2)
    ended, most = 0, 0
    for _ in range(100):
        for share in list(halves):
            if share.room(2 * GRAIN_BYTES, 2 * GRAIN_BYTES) is None:
                most = max(most, sum(one.filling_bytes for one in halves))
                share.sent(share.send())
                share.close()
                halves.remove(share)
                ended += 1
    assert ended == 4
    assert most <= TOTAL + PART
    assert bodies.evicted == []


def test_who_is_slow_while_others_wait_is_ended() -> None:
    bodies = Bodies()
    slow, younger = bodies.full(2, grains=4)
    bodies.clock.now = 20.0
    first, second = bodies.body(), bodies.body()
    assert first.room(0, 1) is None
    wait = second.room(0, GRAIN_BYTES)
    assert wait is not None
    assert bodies.evicted == [], "nobody has had its time yet"
    bodies.clock.now = 31.0
    third = bodies.body()
    assert third.room(0, GRAIN_BYTES) is None
    assert wait.done()
    assert bodies.evicted == [slow]
    with pytest.raises(BodyTooSlow):
        slow.room(4 * GRAIN_BYTES, 1)
    assert younger.room(0, 1) is None


def test_slow_bodies_go_on_while_nobody_waits() -> None:
    bodies = Bodies()
    (slow,) = bodies.full(1, grains=1)
    bodies.clock.now = 3600.0
    assert bodies.body().room(0, GRAIN_BYTES) is None
    assert slow.room(GRAIN_BYTES, 1) is None
    assert bodies.evicted == []


def test_what_was_waited_is_not_slowness() -> None:
    bodies = Bodies()
    held = bodies.full(2, grains=4)
    bodies.body().room(0, 1)
    patient = bodies.body()
    wait = patient.room(0, GRAIN_BYTES)
    assert wait is not None
    bodies.clock.now = 25.0
    held[0].sent(held[0].send())
    assert wait.done()
    bodies.full(1, grains=2)
    bodies.clock.now = 35.0
    others = [bodies.body() for _ in range(3)]
    for share in others:
        share.room(0, GRAIN_BYTES)
    assert patient not in bodies.evicted


def test_a_part_that_is_being_sent_is_not_taken_away() -> None:
    bodies = Bodies()
    (sending,) = bodies.full(1, grains=8)
    taken = sending.send()
    bodies.clock.now = 100.0
    bodies.body().room(0, 1)
    waiting = bodies.body()
    wait = waiting.room(0, GRAIN_BYTES)
    assert wait is not None
    assert not wait.done()
    assert bodies.evicted == []
    sending.sent(taken)
    assert wait.done()


def test_too_many_are_refused_at_once() -> None:
    bodies = Bodies()
    bodies.full(1, grains=8)
    bodies.body().room(0, 1)
    waiting = [bodies.body() for _ in range(TOTAL // GRAIN_BYTES)]
    for share in waiting:
        assert share.room(0, 1) is not None
    with pytest.raises(StagingBusy):
        bodies.body()
    waiting[0].close()
    bodies.body()


@pytest.mark.parametrize("seed", range(20))
def test_everything_is_given_back(seed: int) -> None:
    chosen = random.Random(seed)
    bodies = Bodies()
    living: list[tuple[Share, int]] = []
    flying: list[tuple[Share, int]] = []
    for _ in range(500):
        bodies.clock.now += chosen.random() * 5
        action = chosen.random()
        if action < 0.2:
            try:
                living.append((bodies.body(), 0))
            except StagingBusy:
                continue
        elif action < 0.7 and living:
            at = chosen.randrange(len(living))
            share, filled = living[at]
            count = chosen.randrange(1, GRAIN_BYTES)
            try:
                if share.room(filled, count) is None:
                    living[at] = (share, filled + count)
                    if filled + count >= PART:
                        flying.append((share, share.send()))
                        living[at] = (share, 0)
            except BodyTooSlow:
                share.close()
                living.pop(at)
        elif action < 0.85 and flying:
            share, taken = flying.pop()
            share.sent(taken)
        elif living:
            living.pop(chosen.randrange(len(living)))[0].close()
    for share, taken in flying:
        share.sent(taken)
    for share, _ in living:
        share.close()
    # All of it is there again: eight bodies take it at once.
    assert len(bodies.full(8, grains=1)) == 8
