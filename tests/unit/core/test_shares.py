"""What is silent keeps some of the threads at most; what answers may have them all."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack

import pytest

from shared.core.errors import ResourceBusy
from shared.core.shares import LOOK_SECONDS, Share, Shares


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class World:
    """Eight threads, and for how long each name has been silent."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.shares = Shares(8, silent_seconds=3.0, clock=self.clock)
        self.silence: defaultdict[str, float] = defaultdict(float)
        self.stack = ExitStack()

    def enter(self, name: str, owner: object = None) -> Share:
        """Use a name until the test ends."""

        def refusal() -> ResourceBusy:
            return ResourceBusy(resource=name)

        return self.stack.enter_context(
            self.shares.enter(name, lambda: self.silence[name], refusal=refusal, owner=owner)
        )

    def enters(self, name: str) -> bool:
        """Tell whether one more is let in."""
        try:
            self.enter(name)
        except ResourceBusy:
            return False
        return True

    def wait(self, *silent: str) -> None:
        """Let these be silent for four seconds more."""
        self.clock.now += 4.0
        for name in silent:
            self.silence[name] += 4.0


def leaves(share: Share) -> bool:
    """Tell whether a share has to be given up now."""
    try:
        share.check()
    except ResourceBusy:
        return True
    return False


@pytest.fixture
def world() -> World:
    return World()


def test_what_answers_may_have_all_threads(world: World) -> None:
    shares = [world.enter("well") for _ in range(8)]
    world.wait()
    assert not any(map(leaves, shares))


def test_the_last_to_come_leave_what_falls_silent(world: World) -> None:
    shares = [world.enter("dead") for _ in range(8)]
    assert not any(map(leaves, shares))
    world.wait("dead")
    assert [leaves(share) for share in shares] == [False] * 6 + [True] * 2
    assert not world.enters("dead")
    assert world.enters("well")
    world.silence["dead"] = 0.0
    assert not any(map(leaves, shares))
    assert world.enters("dead")


def test_all_silent_names_together_have_one_share(world: World) -> None:
    shares = [world.enter(name) for name in ("one", "two", "three", "four") * 2]
    world.wait("one", "two", "three", "four")
    assert sum(map(leaves, shares)) == 2


def test_one_that_waits_for_two_has_one_thread(world: World) -> None:
    world.shares = Shares(2, silent_seconds=3.0, clock=world.clock)
    target, source = world.enter("target", "copy"), world.enter("source", "copy")
    other = world.enter("target", "another copy")
    world.wait("target", "source")
    assert [leaves(one) for one in (target, source, other)] == [False, False, True]
    world.enter("source", "copy")


def test_who_has_just_come_waits_as_long_as_the_others_did(world: World) -> None:
    for _ in range(6):
        world.enter("dead")
    world.wait("dead")
    world.silence["other"] = 4.0
    # Nobody else asks it: one may look whether it is well again.
    share = world.enter("other")
    assert not leaves(share)
    assert not world.enters("other")
    world.wait("other")
    assert leaves(share)


def test_looks_at_what_stays_silent_become_rare(world: World) -> None:
    for _ in range(6):
        world.enter("dead")
    world.silence["dead"] = world.silence["other"] = 4.0

    def looks() -> bool:
        try:
            with world.shares.enter(
                "other", lambda: world.silence["other"], refusal=lambda: ResourceBusy(resource="r")
            ):
                return True
        except ResourceBusy:
            return False

    assert looks()
    assert not looks()
    world.clock.now += LOOK_SECONDS
    assert looks()
    world.clock.now += LOOK_SECONDS
    assert not looks()
    world.clock.now += LOOK_SECONDS
    assert looks()
    world.silence["other"] = 0.0
    assert looks()
    world.silence["other"] = 4.0
    assert looks(), "a silence that is new is looked at at once"


@pytest.mark.parametrize("threads", [None, 1])
def test_where_there_is_nothing_to_share(threads: int | None) -> None:
    world = World()
    world.shares = Shares(threads, clock=world.clock)
    shares = [world.enter("dead") for _ in range(3)]
    world.wait("dead")
    assert not any(map(leaves, shares))
    assert world.enters("dead")
