"""A host that fails is left alone; one that is slow has so many at a time."""

from __future__ import annotations

import contextlib

import pytest

from services.origin.hosts import (
    BUSY_SECONDS,
    ENOUGH_BYTES,
    Asking,
    BadAnswer,
    HostBusy,
    Hosts,
)
from shared.core.errors import CancelRequested, ResourceBusy
from shared.core.shares import SILENT_SECONDS, Shares
from shared.fetch import FetchError, FetchTooLarge, FetchUnavailable, ResolverBusy, parse_url

ONE, OTHER = parse_url("http://one.example/"), parse_url("http://other.example/")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def hosts(clock: Clock) -> Hosts:
    return Hosts(per_host=2, failures=2, open_seconds=10.0, clock=clock)


def fail(hosts: Hosts, error: BaseException) -> None:
    with pytest.raises(type(error)), hosts.use(1, ONE):
        raise error


def test_failures_in_a_row_leave_it_alone_and_nobody_else(hosts: Hosts, clock: Clock) -> None:
    fail(hosts, FetchUnavailable())
    assert hosts.opens_in_seconds(1, ONE) == 0
    fail(hosts, BadAnswer())
    assert hosts.opens_in_seconds(1, ONE) == 10
    assert hosts.opens_in_seconds(1, OTHER) == 0
    assert hosts.opens_in_seconds(2, ONE) == 0, "another bucket's path on the host may be well"
    with pytest.raises(HostBusy), hosts.use(1, ONE):
        pytest.fail("it was asked")
    clock.now += 10
    assert hosts.opens_in_seconds(1, ONE) == 0
    with hosts.use(1, ONE):
        assert hosts.opens_in_seconds(1, ONE) > 0, "one asks whether it is well again"
    assert hosts.opens_in_seconds(1, ONE) == 0


@pytest.mark.parametrize(
    "error",
    [FetchTooLarge(), FetchError(), ResolverBusy(), CancelRequested(), ValueError()],
)
def test_what_is_not_its_fault_does_not_count(hosts: Hosts, error: BaseException) -> None:
    for _ in range(5):
        fail(hosts, error)
    assert hosts.opens_in_seconds(1, ONE) == 0


def test_so_many_at_a_time(hosts: Hosts) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(hosts.use(1, ONE))
        stack.enter_context(hosts.use(1, ONE))
        assert hosts.opens_in_seconds(1, ONE) == BUSY_SECONDS
        with pytest.raises(HostBusy):
            stack.enter_context(hosts.use(1, ONE))
        stack.enter_context(hosts.use(1, OTHER))
        stack.enter_context(hosts.use(2, ONE))
    assert hosts.opens_in_seconds(1, ONE) == 0


def test_who_waits_in_vain_makes_room_and_who_is_served_does_not(clock: Clock) -> None:
    hosts = Hosts(per_host=4, shares=Shares(4, clock=clock), clock=clock)
    with contextlib.ExitStack() as stack:

        def ask() -> Asking:
            asking = stack.enter_context(hosts.use(1, ONE))
            stack.enter_context(asking.waiting())
            return asking

        asked = [ask() for _ in range(4)]
        clock.now += SILENT_SECONDS
        asked[0].came(ENOUGH_BYTES - 1)  # It drips.
        for asking in asked[:3]:
            asking.check()
        with pytest.raises(ResourceBusy) as refused:
            asked[3].check()
        assert refused.value.resource == "origin:1:http://one.example"
        asked[0].came(1)
        asked[3].check()
        clock.now += SILENT_SECONDS
        asked[1].answered()
        asked[3].check()
