"""The one fenced commit: all of it or nothing, and never when the task is no longer ours."""

# ruff: noqa: PT012 - a block of complete() is one statement: what it raises is the point

from __future__ import annotations

import math
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog import fenced
from shared.core.errors import CancelRequested, LeaseLost, PermanentError, UnavailableError
from shared.outbox import rows
from shared.outbox.cancel import cancel, supersede
from shared.outbox.execution import RUNNING, SETTLING, Execution
from shared.outbox.kinds import Kind
from shared.outbox.signals import Ended, LeaseLossSeen
from tests.servers.mariadb import MariaDB
from tests.support.eventually import eventually
from tests.support.outbox import Bench, Things, Thread, Touch
from tests.support.outbox import things as table
from tests.support.tcp_proxy import Proxy, proxy_to

MAIL = Kind(name="mail.send", payload=Touch, events=True)
NEXT = Kind(name="mail.receipt", payload=Touch)


@pytest.fixture(autouse=True)
def kinds(bench: Bench) -> None:
    bench.context.kinds.register(MAIL)
    bench.context.kinds.register(NEXT)


def _write(session: Session, thing_id: int, state: str) -> None:
    session.execute(sa.update(table).where(table.c.id == thing_id).values(state=state))


def _lock(thing_id: int) -> object:
    def lock(session: Session) -> None:
        session.execute(sa.select(table.c.id).where(table.c.id == thing_id).with_for_update())

    return lock


def test_completion_commits_effects_next_tasks_and_the_end_together(
    bench: Bench, things: Things
) -> None:
    things.add(1)
    task_id = bench.put(MAIL, tenant_id="acme", trace_parent="00-aa-bb-01")
    execution = bench.run(task_id)
    with execution.complete(lock=[_lock(1)]) as tx:
        assert execution.phase == SETTLING
        _write(tx.session, 1, "sent")
        following = tx.enqueue(NEXT, Touch(thing_id=1))
        tx.emit("sent", {"bytes": 12})
        tx.result = {"message_id": "m-1"}
        assert things.state(1) == "ready"
    assert things.state(1) == "sent"
    row = bench.columns(task_id)
    assert (row["state"], row["attempt"], row["result"]) == ("completed", 1, {"message_id": "m-1"})
    assert (row["owner"], row["fence"]) == (execution.owner, execution.fence)
    assert row["lease_until"] is None
    assert row["finished_at"] is not None
    after = bench.columns(following.id)
    assert (after["parent_id"], after["tenant_id"]) == (task_id, "acme")
    assert after["trace_parent"] == "00-aa-bb-01"
    assert bench.event_types(task_id) == ["pending", "sent", "completed"]
    assert bench.attempts(task_id) == []
    (signal,) = bench.seen(Ended)
    assert (signal.kind, signal.outcome, signal.final) == ("mail.send", "completed", True)
    assert execution.completed
    # What the handler still does cannot lose anything.
    assert (execution.phase, execution.lease_ends) == (RUNNING, math.inf)
    with pytest.raises(RuntimeError, match="already"), execution.complete():
        pass


def test_error_in_the_block_undoes_everything_and_the_execution_runs_on(
    bench: Bench, things: Things
) -> None:
    things.add(1)
    task_id = bench.put(MAIL)
    execution = bench.run(task_id)
    with pytest.raises(ZeroDivisionError), execution.complete(lock=[_lock(1)]) as tx:
        _write(tx.session, 1, "sent")
        following = tx.enqueue(NEXT, {})
        tx.emit("sent", {})
        raise ZeroDivisionError
    assert things.state(1) == "ready"
    assert bench.columns(task_id)["state"] == "running"
    assert bench.event_types(task_id) == ["pending"]
    with pytest.raises(KeyError):
        bench.read(following.id)
    assert execution.phase == RUNNING
    with execution.complete():
        pass
    assert bench.columns(task_id)["state"] == "completed"


def test_acknowledged_cancel_is_never_committed(bench: Bench, things: Things) -> None:
    things.add(1)
    task_id = bench.put(MAIL)
    execution = bench.run(task_id)
    assert cancel(bench.context, bench.enqueuer, task_id, by="ann").state == "cancelling"
    with pytest.raises(CancelRequested) as caught, execution.complete(lock=[_lock(1)]) as tx:
        _write(tx.session, 1, "sent")
    assert things.state(1) == "ready"
    bench.answers.settle(execution, caught.value)
    assert bench.columns(task_id)["state"] == "cancelled"


def test_superseded_running_task_ends_superseded(bench: Bench) -> None:
    task_id = bench.put(MAIL)
    execution = bench.run(task_id)
    with Session(bench.engine) as session, session.begin():
        supersede(bench.context, bench.enqueuer, session, [task_id])
    with pytest.raises(CancelRequested) as caught, execution.complete():
        pass
    assert caught.value.code == "superseded"
    bench.answers.settle(execution, caught.value)
    row = bench.columns(task_id)
    assert (row["state"], row["error_code"]) == ("cancelled", "superseded")


def test_expired_lease_commits_nothing_though_nobody_took_over(bench: Bench) -> None:
    task_id = bench.put(MAIL)
    execution = bench.run(task_id)
    bench.expire(task_id)
    with pytest.raises(LeaseLost), execution.complete() as tx:
        tx.enqueue(NEXT, {})
    assert bench.columns(task_id)["state"] == "running"
    assert bench.seen(LeaseLossSeen) == [LeaseLossSeen(1)]


def test_later_owner_wins_and_the_earlier_commits_nothing(
    bench: Bench, other: Bench, things: Things
) -> None:
    things.add(1)
    task_id = bench.put(MAIL)
    first = bench.run(task_id)
    bench.set(task_id, state="pending", owner=None)
    second = other.run(task_id)
    with pytest.raises(LeaseLost), first.complete() as tx:
        _write(tx.session, 1, "by the first")
    with second.complete() as tx:
        _write(tx.session, 1, "by the second")
    assert things.state(1) == "by the second"
    assert bench.columns(task_id)["fence"] == second.fence


@pytest.mark.parametrize("result", [{"x": object()}, {"x": math.nan}, {"x": "y" * 70_000}])
def test_unwritable_result_is_dropped_and_the_task_completes(
    bench: Bench, result: dict[str, object]
) -> None:
    task_id = bench.put(MAIL)
    with bench.run(task_id).complete() as tx:
        tx.result = result
    row = bench.columns(task_id)
    assert (row["state"], row["result"]) == ("completed", None)


def test_slow_block_is_not_committed(outbox_url: str, redis_url: str, namespace: str) -> None:
    bench = Bench(outbox_url, redis_url, namespace=namespace, kinds=[MAIL], complete_seconds=0.05)
    task_id = bench.put(MAIL)
    execution = bench.run(task_id)
    with pytest.raises(UnavailableError, match="too long"), execution.complete():
        execution.wait(0.1)
    assert bench.columns(task_id)["state"] == "running"
    bench.close()


def test_error_of_a_lock_is_the_handlers_own(bench: Bench) -> None:
    task_id = bench.put(MAIL)
    execution = bench.run(task_id)

    def lock(session: Session) -> None:
        raise PermanentError("the thing is gone")

    with pytest.raises(PermanentError, match="gone"), execution.complete(lock=[lock]):
        pass
    assert execution.phase == RUNNING


def test_fenced_step_commits_and_the_task_runs_on(bench: Bench, things: Things) -> None:
    things.add(1)
    task_id = bench.put(MAIL)
    execution = bench.run(task_id)
    with execution.fenced(lock=[_lock(1)]) as session:
        _write(session, 1, "half")
    assert things.state(1) == "half"
    assert bench.columns(task_id)["state"] == "running"
    with pytest.raises(RuntimeError), execution.fenced(), execution.complete():
        pass
    with pytest.raises(ZeroDivisionError), execution.fenced() as session:
        _write(session, 1, "more")
        raise ZeroDivisionError
    assert things.state(1) == "half"
    cancel(bench.context, bench.enqueuer, task_id, by="ann")
    with pytest.raises(CancelRequested), execution.fenced() as session:
        _write(session, 1, "late")
    assert things.state(1) == "half"


def test_cancel_and_completion_at_the_same_time_never_both_win(bench: Bench) -> None:
    for _ in range(25):
        task_id = bench.put(MAIL)
        execution = bench.run(task_id)
        start = threading.Barrier(2)

        def finish(execution: Execution = execution, start: threading.Barrier = start) -> str:
            start.wait()
            try:
                with execution.complete():
                    pass
            except CancelRequested as error:
                bench.answers.settle(execution, error)
                return "cancelled"
            return "completed"

        thread = Thread(finish)
        start.wait()
        answer = cancel(bench.context, bench.enqueuer, task_id, by="ann")
        ended = thread.join_answer()
        state = bench.columns(task_id)["state"]
        assert state == ended
        assert (answer.state, state) in {
            ("cancelling", "cancelled"),
            ("completed", "completed"),
        }


@pytest.mark.databases("mariadb")
def test_cancel_waits_for_an_open_completion(bench: Bench) -> None:
    task_id = bench.put(MAIL)
    with bench.run(task_id).complete():
        thread = Thread(lambda: cancel(bench.context, bench.enqueuer, task_id, by="ann"))
        bench.await_lock_wait()
    answer = thread.join_answer()
    assert (answer.state, answer.is_new) == ("completed", False)


@pytest.mark.databases("mariadb")
def test_deadlock_among_the_locks_reaches_nobody(bench: Bench, things: Things) -> None:
    things.add(1)
    things.add(2)
    tasks = [bench.put(MAIL), bench.put(MAIL)]
    both = threading.Barrier(2, timeout=20)
    met = [False, False]

    def complete(me: int, order: tuple[int, int]) -> None:
        def meet(session: Session) -> None:
            # Only in the first round: after the deadlock one of them comes again alone.
            if not met[me]:
                met[me] = True
                both.wait()

        execution = bench.run(tasks[me])
        with execution.complete(lock=[_lock(order[0]), meet, _lock(order[1])]) as tx:
            _write(tx.session, order[0], f"by {me}")

    before = _deadlocks(bench)
    threads = [Thread(lambda: complete(0, (1, 2))), Thread(lambda: complete(1, (2, 1)))]
    for thread in threads:
        thread.join_answer()
    assert _deadlocks(bench) == before + 1
    assert [bench.columns(task_id)["state"] for task_id in tasks] == ["completed"] * 2


@pytest.mark.databases("mariadb")
def test_deadlock_in_the_block_is_a_transient_error(bench: Bench, things: Things) -> None:
    things.add(1)
    things.add(2)
    tasks = [bench.put(MAIL), bench.put(MAIL)]
    both = threading.Barrier(2, timeout=20)

    def complete(me: int, order: tuple[int, int]) -> str:
        try:
            with bench.run(tasks[me]).complete() as tx:
                _write(tx.session, order[0], f"by {me}")
                both.wait()
                _write(tx.session, order[1], f"by {me}")
        except UnavailableError as error:
            return error.code
        return "completed"

    threads = [Thread(lambda: complete(0, (1, 2))), Thread(lambda: complete(1, (2, 1)))]
    assert sorted(thread.join_answer() for thread in threads) == ["completed", "unavailable"]


@pytest.mark.databases("mariadb")
@pytest.mark.parametrize("how", ["complete", "fenced"])
def test_a_catalogue_commit_is_tried_again_after_a_deadlock_in_its_body(
    bench: Bench, things: Things, how: str
) -> None:
    things.add(1)
    things.add(2)
    tasks = [bench.put(MAIL), bench.put(MAIL)]
    both = threading.Barrier(2, timeout=20)
    tries = [0, 0]

    def commit(me: int, order: tuple[int, int]) -> None:
        def body(session: Session) -> None:
            tries[me] += 1
            _write(session, order[0], f"by {me}")
            if tries[me] == 1:
                both.wait()
            _write(session, order[1], f"by {me}")

        execution = bench.run(tasks[me])
        if how == "fenced":
            fenced.fenced(execution, bench.context.db, lock=fenced.no_lock, body=body)
        else:
            fenced.complete(
                execution,
                bench.context.db,
                lock=fenced.no_lock,
                body=lambda tx: body(tx.session),
            )

    threads = [Thread(lambda: commit(0, (1, 2))), Thread(lambda: commit(1, (2, 1)))]
    for thread in threads:
        thread.join_answer()
    assert sorted(tries) == [1, 2]


@pytest.mark.databases("mariadb")
def test_older_tasks_superseded_inside_a_completion_are_locked_first(bench: Bench) -> None:
    older, newer = bench.put(MAIL), bench.put(MAIL)
    execution = bench.run(newer)
    dialect = bench.context.db.dialect
    with execution.complete(lock=[lambda s: rows.lock_tasks(s, dialect, [older])]) as tx:
        done = supersede(bench.context, bench.enqueuer, tx.session, [older])
    assert done.cancelled == (older,)
    assert bench.columns(older)["error_code"] == "superseded"


@pytest.mark.databases("mariadb")
@pytest.mark.parametrize("act", ["complete", "checkpoint", "emit", "settle"])
def test_lease_that_ends_during_a_lock_wait_is_lost(bench: Bench, act: str) -> None:
    """The clock is read when the row is held, not when the statement began to wait for it."""
    task_id = bench.put(MAIL)
    execution = bench.run(task_id, lease_seconds=1.0)
    execution.lease_ends = math.inf

    def write() -> str:
        try:
            if act == "complete":
                with execution.complete():
                    pass
            elif act == "checkpoint":
                execution.checkpoint({}, 1)
            elif act == "emit":
                execution.emit("progress", {})
            else:
                bench.answers.settle(execution, PermanentError("bad"))
        except LeaseLost:
            return "lost"
        return execution.outcome or "written"

    with bench.locked(task_id):
        thread = Thread(write)
        bench.await_lock_wait()
        eventually(lambda: not bench.read(task_id).is_leased)
    assert thread.join_answer() == "lost"
    row = bench.columns(task_id)
    assert (row["state"], row["checkpoint"]) == ("running", None)
    assert bench.event_types(task_id) == ["pending"]


class _Cut:
    """A bench behind a proxy that can lose the answer to a COMMIT."""

    def __init__(self, bench: Bench, proxy: Proxy) -> None:
        self.bench = bench
        self.proxy = proxy


@pytest.fixture
def cut(bench: Bench, mariadb: MariaDB, redis_url: str, namespace: str) -> Iterator[_Cut]:
    with proxy_to(mariadb.port) as proxy:
        url = bench.engine.url.set(port=proxy.port).render_as_string(hide_password=False)
        behind = Bench(url, redis_url, namespace=namespace, node="cut", kinds=[MAIL, NEXT])
        yield _Cut(behind, proxy)
        behind.close()


@pytest.mark.databases("mariadb")
def test_commit_whose_answer_was_lost_is_looked_up_and_found(
    bench: Bench, cut: _Cut, things: Things
) -> None:
    things.add(1)
    task_id = bench.put(MAIL)
    execution = cut.bench.run(task_id)
    with execution.complete() as tx:
        _write(tx.session, 1, "sent")
        cut.proxy.arm(b"COMMIT", "after")
    assert cut.proxy.has_cut.is_set()
    assert execution.completed
    assert things.state(1) == "sent"
    row = bench.columns(task_id)
    assert (row["state"], row["attempt"]) == ("completed", 1)
    assert len(cut.bench.seen(Ended)) == 1


@pytest.mark.databases("mariadb")
def test_commit_that_never_arrived_is_looked_up_and_not_found(
    bench: Bench, cut: _Cut, things: Things
) -> None:
    things.add(1)
    task_id = bench.put(MAIL)
    execution = cut.bench.run(task_id)
    with pytest.raises(UnavailableError) as caught, execution.complete() as tx:
        _write(tx.session, 1, "sent")
        cut.proxy.arm(b"COMMIT", "before")
    assert cut.proxy.has_cut.is_set()
    assert not execution.completed
    assert things.state(1) == "ready"
    assert bench.columns(task_id)["state"] == "running"
    cut.bench.answers.settle(execution, caught.value)
    assert bench.columns(task_id)["state"] == "scheduled"


@pytest.mark.databases("mariadb")
def test_answer_whose_commit_was_not_heard_is_written_once(bench: Bench, cut: _Cut) -> None:
    task_id = bench.put(MAIL)
    execution = cut.bench.run(task_id)
    cut.proxy.arm(b"COMMIT", "after")
    cut.bench.answers.settle(execution, PermanentError("bad"))
    assert cut.proxy.has_cut.is_set()
    row = bench.columns(task_id)
    assert (row["state"], row["attempt"]) == ("failed", 1)
    assert len(bench.attempts(task_id)) == 1
    assert [signal.outcome for signal in cut.bench.seen(Ended)] == ["failed"]


@pytest.mark.databases("mariadb")
def test_connection_lost_before_the_locks_is_a_transient_error(bench: Bench, cut: _Cut) -> None:
    task_id = bench.put(MAIL)
    execution = cut.bench.run(task_id)
    cut.proxy.arm(b"FORCE INDEX", "before")
    with pytest.raises(UnavailableError), execution.complete():
        pass
    assert execution.phase == RUNNING


def _deadlocks(bench: Bench) -> int:
    with bench.engine.connect() as connection:
        found = connection.exec_driver_sql("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'").one()
    return int(found[1])


@pytest.mark.parametrize("is_taken_over", [False, True])
def test_worker_stopped_past_its_lease_and_continued_commits_nothing(
    bench: Bench, things: Things, redis_url: str, namespace: str, is_taken_over: bool
) -> None:
    things.add(1)
    task_id = bench.put(MAIL)
    url = bench.engine.url.render_as_string(hide_password=False)
    argv = [url, redis_url, namespace, str(task_id), "1.5"]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.paused_worker", *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "claimed\n"
        child.send_signal(signal.SIGSTOP)
        eventually(lambda: not bench.read(task_id).is_leased)
        if is_taken_over:
            bench.set(task_id, state="pending", owner=None)
            bench.run(task_id)
        before = bench.columns(task_id)
        child.send_signal(signal.SIGCONT)
        said, _ = child.communicate("go\n", timeout=30)
    assert said.split() == ["LeaseLost", "LeaseLost", "lost"]
    assert bench.columns(task_id) == before
    assert things.state(1) == "ready"
    assert bench.attempts(task_id) == []
