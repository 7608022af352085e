"""A host that fails is left alone; one that is slow has so many at a time."""

from __future__ import annotations

import contextlib

import pytest

from services.origin.hosts import BUSY_SECONDS, BadAnswer, HostBusy, Hosts
from shared.core.errors import CancelRequested
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
    with pytest.raises(type(error)), hosts.use(ONE):
        raise error


def test_failures_in_a_row_leave_it_alone_and_nobody_else(hosts: Hosts, clock: Clock) -> None:
    fail(hosts, FetchUnavailable())
    assert hosts.opens_in_seconds(ONE) == 0
    fail(hosts, BadAnswer())
    assert hosts.opens_in_seconds(ONE) == 10
    assert hosts.opens_in_seconds(OTHER) == 0
    with pytest.raises(HostBusy), hosts.use(ONE):
        pytest.fail("it was asked")
    clock.now += 10
    assert hosts.opens_in_seconds(ONE) == 0
    with hosts.use(ONE):
        assert hosts.opens_in_seconds(ONE) > 0, "one asks whether it is well again"
    assert hosts.opens_in_seconds(ONE) == 0


@pytest.mark.parametrize(
    "error",
    [FetchTooLarge(), FetchError(), ResolverBusy(), CancelRequested(), ValueError()],
)
def test_what_is_not_its_fault_does_not_count(hosts: Hosts, error: BaseException) -> None:
    for _ in range(5):
        fail(hosts, error)
    assert hosts.opens_in_seconds(ONE) == 0


def test_so_many_at_a_time(hosts: Hosts) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(hosts.use(ONE))
        stack.enter_context(hosts.use(ONE))
        assert hosts.opens_in_seconds(ONE) == BUSY_SECONDS
        with pytest.raises(HostBusy):
            stack.enter_context(hosts.use(ONE))
        stack.enter_context(hosts.use(OTHER))
    assert hosts.opens_in_seconds(ONE) == 0
