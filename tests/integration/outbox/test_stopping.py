"""Stopping what should not run on: asked first, interrupted after, and at last not live."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from dramatiq.threading import raise_thread_exception

from shared.core.clock import Deadline, monotonic
from shared.core.errors import CancelRequested, LeaseLost, ShuttingDown, TimeLimitExceeded
from shared.outbox.cancel import cancel
from shared.outbox.execution import CLAIMED, ENDED, RUNNING, SETTLING, Execution
from shared.outbox.finisher import Finisher
from shared.outbox.kinds import Kind
from shared.outbox.perform import Performer
from shared.outbox.policy import RetryPolicy
from shared.outbox.signals import LeaseLossSeen
from shared.outbox.stopping import Interrupted, Watchdog, protected
from tests.support.eventually import eventually
from tests.support.outbox import Bench, Thread, Touch

MAIL = Kind(name="mail.send", payload=Touch, time_limit_seconds=0.2, retry=RetryPolicy())
SLOW = Kind(name="mail.slow", payload=Touch, time_limit_seconds=600)


class Shop:
    """A bench with the worker's parts that run a handler, and a watchdog."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.handlers: dict[str, Callable[[Execution], object]] = {}
        self.finisher = Finisher(bench.context, bench.answers.settle)
        self.finisher.start()
        self.watchdog = Watchdog(bench.context, bench.answers.give_back)
        self.performer = Performer(
            bench.context,
            finisher=self.finisher,
            settle=bench.answers.settle,
            measure=lambda *_: None,
        )
        for kind in (MAIL, SLOW):
            bench.context.kinds.handle(kind, lambda item, _: self.handlers[item.kind.name](item))

    def start(self, kind: Kind[Touch], handler: Callable[[Execution], object]) -> Execution:
        """Run a handler in a thread of its own, as a worker thread would."""
        self.handlers[kind.name] = handler
        execution = self.bench.run(self.bench.put(kind), phase=CLAIMED)
        self.thread = Thread(
            lambda: self.performer.perform("mail", execution.task.id, execution.dispatch_id)
        )
        return execution

    def close(self) -> None:
        """End the threads."""
        assert self.watchdog.close(10)
        assert self.finisher.close(10)


@pytest.fixture
def shop(outbox_url: str, redis_url: str, namespace: str) -> Iterator[Shop]:
    """Stopped handlers are interrupted after 0.3 s and make the process not live after 0.8 s."""
    bench = Bench(
        outbox_url,
        redis_url,
        namespace=namespace,
        interrupt_after_seconds=0.3,
        dead_after_seconds=0.8,
        unstarted_seconds=0.4,
    )
    made = Shop(bench)
    yield made
    made.close()
    bench.close()


def _spin(until: threading.Event) -> None:
    """Work without ever asking whether to stop."""
    while not until.is_set():
        sum(range(100))


def test_handler_that_asks_stops_at_its_time_limit(shop: Shop) -> None:
    def handler(execution: Execution) -> None:
        execution.wait(60)

    execution = shop.start(MAIL, handler)
    shop.watchdog.start()
    shop.thread.join_answer()
    assert isinstance(execution.stop_error, TimeLimitExceeded)
    row = shop.bench.columns(execution.task.id)
    assert (row["state"], row["error_code"], row["attempt"]) == ("scheduled", "timeout", 1)
    assert execution.phase == ENDED
    assert shop.watchdog.is_live


def test_handler_that_does_not_ask_is_interrupted(shop: Shop) -> None:
    never_set = threading.Event()
    cleaned = threading.Event()

    def handler(execution: Execution) -> None:
        try:
            _spin(never_set)
        finally:
            cleaned.set()

    execution = shop.start(MAIL, handler)
    shop.watchdog.start()
    shop.thread.join_answer()
    assert cleaned.is_set()
    assert shop.bench.columns(execution.task.id)["error_code"] == "timeout"


def test_interrupt_waits_for_the_end_of_a_shielded_block(shop: Shop) -> None:
    is_free, reached, steps = threading.Event(), threading.Event(), list[str]()

    def handler(execution: Execution) -> None:
        with execution.shielded():
            reached.set()
            assert is_free.wait(20)
            steps.append("shielded")
        _spin(threading.Event())
        steps.append("never")

    execution = shop.start(SLOW, handler)
    assert reached.wait(20)
    execution.stop(ShuttingDown())
    execution.stop_at -= 0.4
    shop.watchdog.run_once()
    shop.watchdog.run_once()
    is_free.set()
    eventually(lambda: (shop.watchdog.run_once(), not shop.thread.is_alive())[1])
    assert steps == ["shielded"]
    assert shop.bench.columns(execution.task.id)["state"] == "pending"


def test_interrupt_never_hits_a_completion(shop: Shop) -> None:
    is_open, may_close = threading.Event(), threading.Event()

    def handler(execution: Execution) -> None:
        with execution.complete() as tx:
            is_open.set()
            assert may_close.wait(20)
            tx.result = {"done": True}

    execution = shop.start(SLOW, handler)
    assert is_open.wait(20)
    execution.stop(TimeLimitExceeded())
    execution.stop_at -= 60
    shop.watchdog.run_once()
    may_close.set()
    shop.thread.join_answer()
    row = shop.bench.columns(execution.task.id)
    assert (row["state"], row["result"]) == ("completed", {"done": True})
    assert execution.phase == ENDED


def test_interrupt_on_its_way_is_raised_before_a_transaction_begins(shop: Shop) -> None:
    """The watchdog sets it while the handler waits for the lock to enter the block."""
    may_enter, hits = threading.Event(), list[str]()

    def handler(execution: Execution) -> None:
        assert may_enter.wait(20)
        try:
            with protected(execution):
                hits.append("inside")
        except Interrupted:
            hits.append(execution.phase)
            raise

    execution = shop.start(SLOW, handler)
    eventually(lambda: execution.phase == RUNNING)
    execution.stop(ShuttingDown())
    with execution.lock:
        may_enter.set()
        eventually(lambda: _is_inside(shop.thread, protected))
        raise_thread_exception(execution.thread_id, Interrupted)
    shop.thread.join_answer()
    assert hits == [RUNNING]
    assert shop.bench.columns(execution.task.id)["state"] == "pending"


def _is_inside(thread: threading.Thread, function: Callable[..., object]) -> bool:
    """Tell whether a thread is in a generator function of ours at this moment."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if frame.f_code.co_name == function.__name__:
            return True
        frame = frame.f_back
    return False


def test_interrupts_around_the_handlers_end_kill_no_thread(shop: Shop) -> None:
    """Wherever the interrupt arrives, the task gets its answer and the thread comes back."""
    interrupted = 0
    for turn in range(60):
        about_to_end = threading.Event()

        def handler(
            execution: Execution, about_to_end: threading.Event = about_to_end, turn: int = turn
        ) -> None:
            about_to_end.set()
            end = Deadline(turn * 0.0003)
            while not end.expired():
                pass

        execution = shop.start(SLOW, handler)
        assert about_to_end.wait(20)
        execution.stop(ShuttingDown())
        execution.stop_at -= 60
        shop.watchdog.run_once()
        shop.thread.join_answer()
        eventually(lambda execution=execution: execution.phase == ENDED)
        state = shop.bench.columns(execution.task.id)["state"]
        assert state in {"pending", "completed"}
        interrupted += state == "pending"
    assert interrupted > 0


def test_handler_that_cannot_be_interrupted_makes_the_process_not_live(shop: Shop) -> None:
    release = threading.Event()

    def handler(execution: Execution) -> None:
        # A blocking call hears no exception: it is set, and delivered when the call returns.
        release.wait(20)

    execution = shop.start(SLOW, handler)
    eventually(lambda: execution.phase == RUNNING)
    execution.stop(CancelRequested())
    shop.watchdog.run_once()
    assert shop.watchdog.is_live
    execution.stop_at -= 0.5
    shop.watchdog.run_once()
    assert shop.watchdog.is_live
    execution.stop_at -= 0.5
    shop.watchdog.run_once()
    assert not shop.watchdog.is_live
    release.set()
    shop.thread.join_answer()
    shop.watchdog.run_once()
    assert shop.watchdog.is_live


def test_answer_that_waits_for_the_database_is_not_a_stuck_handler(shop: Shop) -> None:
    execution = shop.bench.run(shop.bench.put(SLOW), phase=SETTLING)
    execution.stop(ShuttingDown())
    execution.stop_at -= 600
    shop.watchdog.run_once()
    assert shop.watchdog.is_live
    execution.lease_ends = monotonic() - 1
    shop.watchdog.run_once()
    assert not shop.watchdog.is_live


def test_lease_of_what_hangs_past_its_time_limit_is_not_renewed(shop: Shop) -> None:
    release = threading.Event()

    def handler(execution: Execution) -> None:
        with execution.complete():
            release.wait(20)

    bench = shop.bench
    execution = shop.start(MAIL, handler)
    eventually(lambda: execution.phase == SETTLING)
    late = execution.started_at + MAIL.time_limit_seconds + 2 * bench.context.settings.lease_seconds
    assert execution.renew_until == pytest.approx(late)
    execution.renew_until = monotonic() - 0.01
    before = execution.lease_ends
    # Had it been asked for, it would be behind: its own transaction has locked the row.
    assert bench.heartbeat.renew([execution]) == set()
    assert execution.lease_ends == before
    # Once the lease is over, a process that still holds it so is not live.
    shop.watchdog.run_once()
    assert shop.watchdog.is_live
    execution.lease_ends = monotonic() - 1
    shop.watchdog.run_once()
    assert not shop.watchdog.is_live
    release.set()
    shop.thread.join_answer()


def test_lease_that_ran_out_here_stops_the_execution(shop: Shop) -> None:
    running = shop.bench.run(shop.bench.put(SLOW))
    unstarted = shop.bench.run(shop.bench.put(SLOW), phase=CLAIMED)
    settling = shop.bench.run(shop.bench.put(SLOW), phase=SETTLING)
    for execution in (running, unstarted, settling):
        execution.lease_ends = monotonic() - 0.01
    shop.watchdog.run_once()
    assert isinstance(running.stop_error, LeaseLost)
    assert unstarted.phase == ENDED
    assert settling.stop_error is None
    assert shop.bench.context.executions.find(unstarted.task.id) is None
    assert shop.bench.seen(LeaseLossSeen) == [LeaseLossSeen(2)]
    shop.watchdog.run_once()
    assert shop.bench.seen(LeaseLossSeen) == [LeaseLossSeen(2)]


def test_first_reason_to_stop_stays(shop: Shop) -> None:
    execution = shop.bench.run(shop.bench.put(SLOW))
    execution.deadline = Deadline(-1)
    execution.stop(CancelRequested())
    shop.watchdog.run_once()
    assert isinstance(execution.stop_error, CancelRequested)


def test_claims_that_no_thread_starts_go_back(shop: Shop) -> None:
    ids = [shop.bench.put(SLOW) for _ in range(3)]
    old, new, suspect = (shop.bench.run(task_id, phase=CLAIMED) for task_id in ids)
    old.claimed_at -= 1
    suspect.claimed_at -= 1
    shop.bench.context.executions.remove(suspect)
    shop.bench.set(ids[2], recoveries=2, state="pending", owner=None)
    suspect = shop.bench.run(ids[2], phase=CLAIMED)
    suspect.claimed_at -= 30
    shop.watchdog.run_once()
    states = [shop.bench.columns(task_id)["state"] for task_id in ids]
    # A suspect waits until the process is empty, a minute at most.
    assert states == ["pending", "running", "running"]
    assert old.phase == ENDED
    assert shop.bench.columns(ids[0])["attempt"] == 0
    assert new.phase == CLAIMED
    suspect.claimed_at -= 40
    shop.watchdog.run_once()
    assert shop.bench.columns(ids[2])["state"] == "pending"


def test_tail_after_the_completion_has_a_time_limit_too(shop: Shop) -> None:
    def handler(execution: Execution) -> None:
        with execution.complete():
            pass
        execution.wait(60)

    execution = shop.start(MAIL, handler)
    shop.watchdog.start()
    shop.thread.join_answer()
    assert isinstance(execution.stop_error, TimeLimitExceeded)
    assert shop.bench.columns(execution.task.id)["state"] == "completed"
    assert shop.bench.seen(LeaseLossSeen) == []


def test_handler_that_exits_gets_an_answer_all_the_same(shop: Shop) -> None:
    def handler(execution: Execution) -> None:
        raise SystemExit(3)

    execution = shop.start(SLOW, handler)
    shop.thread.join_answer()
    row = shop.bench.columns(execution.task.id)
    assert (row["state"], row["error_code"], row["attempt"]) == ("scheduled", "exception", 1)
    assert len(shop.bench.context.executions) == 0


def test_task_cancelled_while_it_waited_for_a_thread_never_starts(shop: Shop) -> None:
    started: list[int] = []
    shop.handlers[SLOW.name] = lambda execution: started.append(execution.task.id)
    execution = shop.bench.run(shop.bench.put(SLOW), phase=CLAIMED)
    cancel(shop.bench.context, shop.bench.enqueuer, execution.task.id, by="ann")
    shop.bench.heartbeat.look()
    shop.performer.perform("mail", execution.task.id, execution.dispatch_id)
    assert started == []
    assert shop.bench.columns(execution.task.id)["state"] == "cancelled"


def test_finisher_drops_only_the_unwritable_result(shop: Shop) -> None:
    executions = []
    for answer in ({"x": object()}, {"x": float("nan")}, {"x": 1}):
        executions.append(shop.start(SLOW, lambda _, answer=answer: answer))
        shop.thread.join_answer()
    eventually(lambda: all(execution.phase == ENDED for execution in executions))
    rows = [shop.bench.columns(execution.task.id) for execution in executions]
    assert [row["state"] for row in rows] == ["completed"] * 3
    assert [row["result"] for row in rows] == [None, None, {"x": 1}]


def test_payload_of_a_newer_release_waits_for_a_worker_that_knows_it(shop: Shop) -> None:
    started: list[int] = []
    shop.handlers[SLOW.name] = lambda execution: started.append(execution.task.id)
    task_id = shop.bench.put(SLOW)
    shop.bench.set(task_id, payload={"v": 2, "p": {"new": True}})
    execution = shop.bench.run(task_id, phase=CLAIMED)
    shop.performer.perform("mail", task_id, execution.dispatch_id)
    row = shop.bench.columns(task_id)
    assert (row["state"], row["attempt"], row["error_code"]) == ("scheduled", 0, "snoozed")
    shop.bench.set(task_id, payload={"v": 1, "p": {"thing_id": "none"}})
    execution = shop.bench.run(task_id, phase=CLAIMED)
    shop.performer.perform("mail", task_id, execution.dispatch_id)
    row = shop.bench.columns(task_id)
    assert (row["state"], row["error_code"], started) == ("failed", "payload_unreadable", [])
