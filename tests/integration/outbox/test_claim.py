"""Claims beside locked rows, and claims whose COMMIT was not confirmed."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from shared.core.clock import monotonic
from shared.outbox.claim import Claim, Claimer
from shared.outbox.messages import decode, encode
from shared.outbox.signals import StaleMessages
from tests.servers.mariadb import MariaDB
from tests.support.filling import PLAIN, QUEUE, add
from tests.support.outbox import Bench
from tests.support.tcp_proxy import Proxy, proxy_to

pytestmark = pytest.mark.databases("mariadb")


@pytest.fixture
def proxy(mariadb: MariaDB) -> Iterator[Proxy]:
    with proxy_to(mariadb.port) as made:
        yield made


@pytest.fixture
def cut(
    outbox_url: str, mariadb: MariaDB, proxy: Proxy, redis_url: str, namespace: str
) -> Iterator[Bench]:
    """A process whose connections to the database may be cut."""
    url = outbox_url.replace(f":{mariadb.port}/", f":{proxy.port}/")
    made = Bench(url, redis_url, namespace=namespace, kinds=[PLAIN])
    yield made
    made.close()


def _dispatched(bench: Bench, count: int, **values: object) -> list[int]:
    ids = add(bench, count, state="dispatched", **values)
    for task_id in ids:
        bench.set(task_id, dispatch_id=f"d{task_id}")
    return ids


def _claim(bench: Bench, ids: list[int]) -> Claim:
    claimer = Claimer(bench.context, bench, QUEUE)
    messages = [decode(encode(QUEUE, task_id, f"d{task_id}"), QUEUE) for task_id in ids]
    try:
        return claimer.claim(messages, threading.Event())
    finally:
        claimer.close()


def test_rows_won_by_a_commit_that_was_not_confirmed_are_found(cut: Bench, proxy: Proxy) -> None:
    ids = _dispatched(cut, 3)
    proxy.arm(b"COMMIT", "after")
    began = monotonic()
    claim = _claim(cut, ids)
    assert proxy.has_cut.is_set()
    assert [execution.task.id for execution in claim.executions] == ids
    rows = [cut.read(task_id) for task_id in ids]
    assert [(row.state, row.fence, row.owner) for row in rows] == [
        ("running", 1, claim.executions[0].owner)
    ] * 3
    # Counted from before the try that won them: never longer than the database does.
    lease_ends = claim.executions[0].lease_ends - cut.context.settings.lease_seconds
    assert began <= lease_ends <= began + 0.1


def test_a_suspect_won_so_is_isolated_all_the_same(cut: Bench, proxy: Proxy) -> None:
    suspect, *others = ids = _dispatched(cut, 3, recoveries=2)
    proxy.arm(b"COMMIT", "after")
    claim = _claim(cut, ids)
    assert proxy.has_cut.is_set()
    assert claim.suspect is not None
    assert [execution.task.id for execution in claim.executions] == [claim.suspect.task.id]
    assert claim.suspect.task.id == suspect
    assert {cut.read(task_id).state for task_id in others} == {"scheduled"}


def test_a_row_that_is_locked_for_long_does_not_keep_the_others_of_its_fetch(bench: Bench) -> None:
    bench.context.kinds.register(PLAIN)
    locked, *others = ids = _dispatched(bench, 4)
    with bench.locked(locked):
        claim = _claim(bench, ids)
    assert [execution.task.id for execution in claim.executions] == others
    # It was not taken for stale: the scan finds that its message is gone.
    assert bench.read(locked).state == "dispatched"
    assert bench.seen(StaleMessages) == []
