"""Slow calls in helper threads, and an owner that stays awake."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

from shared.core.clock import Deadline
from shared.core.errors import CancelRequested
from shared.storage.bandwidth import TokenBucket
from shared.storage.crew import Crew
from shared.storage.errors import ChannelUnavailable, DeadlinePassed
from tests.support.eventually import eventually


def nothing() -> None:
    pass


def test_results_and_errors_come_back_to_the_owner() -> None:
    with Crew[int](check=nothing, deadline=Deadline(30)) as crew:
        assert crew.run(lambda: 7) == 7
        for number in range(3):
            crew.start(lambda number=number: number)  # type: ignore[misc]
        assert {crew.next_done() for _ in range(3)} == {0, 1, 2}

        def fail() -> int:
            raise ChannelUnavailable("no")

        with pytest.raises(ChannelUnavailable):
            crew.run(fail)


def test_the_owner_asks_while_a_job_hangs_and_leaves_it_behind() -> None:
    hang, asked = threading.Event(), []

    def check() -> None:
        asked.append(time.monotonic())
        if len(asked) == 4:
            raise CancelRequested

    started = time.monotonic()
    try:
        with (
            pytest.raises(CancelRequested),
            Crew[bool](check=check, deadline=Deadline(60)) as crew,
        ):
            crew.run(lambda: hang.wait(30))
    finally:
        hang.set()
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert max(pauses) < 1.0
    assert time.monotonic() - started < 10


def test_check_is_asked_in_the_owners_thread_only() -> None:
    threads = set()
    with Crew[None](
        check=lambda: threads.add(threading.get_ident()), deadline=Deadline(30)
    ) as crew:
        crew.run(nothing)
    assert threads == {threading.get_ident()}


def test_a_deadline_ends_the_wait_for_a_job_that_hangs() -> None:
    hang = threading.Event()
    try:
        with (
            pytest.raises(DeadlinePassed),
            Crew[bool](check=nothing, deadline=Deadline(0.2)) as crew,
        ):
            crew.run(lambda: hang.wait(30))
    finally:
        hang.set()


def test_the_reason_to_stop_is_told_before_the_error_it_caused() -> None:
    stopped = threading.Event()

    def check() -> None:
        if stopped.is_set():
            raise CancelRequested

    def job() -> None:
        stopped.set()
        raise ChannelUnavailable("cut off")

    with pytest.raises(CancelRequested), Crew[None](check=check, deadline=Deadline(30)) as crew:
        crew.run(job)


def test_a_job_that_paces_ends_with_its_owner() -> None:
    ended = threading.Event()

    def run() -> None:
        with Crew[None](check=nothing, deadline=Deadline(0.1)) as crew:
            pace = crew.pace(TokenBucket(1))  # One byte a second: it would wait for days.

            def job() -> None:
                try:
                    pace(10_000_000)
                finally:
                    ended.set()

            crew.run(job)

    with pytest.raises(DeadlinePassed):
        run()
    assert ended.is_set(), "the owner waits a moment for helpers that can end"


def test_helpers_never_outlive_an_owner_that_ended_well() -> None:
    before = threading.active_count()
    with Crew[None](check=nothing, deadline=Deadline(30)) as crew:
        for _ in range(10):
            crew.run(nothing)
    eventually(lambda: threading.active_count() <= before)
