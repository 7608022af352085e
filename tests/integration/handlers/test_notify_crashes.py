"""SIGKILL at every step of a delivery; another worker goes on, and the receiver can tell.

What was sent before the death comes again under the id by which a receiver knows it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.catalog.models import DeliveryState
from tests.integration.handlers.test_notify import deliveries, stored, subscribe, subscription
from tests.support.crash import crash
from tests.support.handlers import Stand
from tests.support.reviewer import running_reviewer

pytestmark = pytest.mark.databases("mariadb")

KILLED = -9


def die(stand: Stand, root: Path, failpoint: str) -> int:
    """Let a process die in the one delivery; returns its task, which waits again."""
    (task_id,) = stand.waiting("notify")
    url = stand.db.engine.url.render_as_string(hide_password=False)
    assert crash(url, root, task_id, failpoint) == KILLED
    if stand.state(task_id) == "running":
        stand.bench.set(task_id, state="pending", owner=None, lease_until=None)
    return task_id


@pytest.mark.parametrize(
    ("step", "messages"),
    [
        ("notify.before_send", 1),
        ("notify.after_send", 2),
        ("complete.before_commit", 2),
        ("complete.after_commit", 1),
    ],
)
def test_death_around_an_answer_of_2xx(
    stand: Stand, tmp_path: Path, step: str, messages: int
) -> None:
    with running_reviewer() as receiver:
        receiver.script = lambda _asked: (200, {})
        subscribe(stand, receiver)
        stored(stand, stand.bucket(), "k")
        task_id = die(stand, tmp_path, step)
        if stand.state(task_id) != "completed":
            assert stand.work(task_id) == "completed"
        assert len(receiver.asked) == messages
        assert len({one.message_id for one in receiver.asked}) == 1
        (one,) = deliveries(stand)
        assert (one.state, one.tries, one.status) == (DeliveryState.DELIVERED, 1, 200)


@pytest.mark.parametrize("step", ["notify.after_send", "fenced.before_commit", "answer.before"])
def test_death_around_a_refusal(stand: Stand, tmp_path: Path, step: str) -> None:
    with running_reviewer() as receiver:
        receiver.script = lambda _asked: (500, {})
        own = subscribe(stand, receiver)
        stored(stand, stand.bucket(), "k")
        task_id = die(stand, tmp_path, step)
        receiver.script = lambda _asked: (204, {})
        assert stand.work(task_id) == "completed"
        assert len({one.message_id for one in receiver.asked}) == 1
        (one,) = deliveries(stand)
        assert (one.state, one.status) == (DeliveryState.DELIVERED, 204)
        assert subscription(stand, own).failures == 0
