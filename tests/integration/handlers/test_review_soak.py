"""Few contents, few keys, many actors: puts, deletes, callbacks, decisions, releases, re-reviews.

Afterwards nothing is served that was found to be bad, nothing waits, and nothing is left over.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from shared.catalog.buckets import BucketSpec, put_bucket
from shared.catalog.invariants.rows import row_breaches
from shared.catalog.models import Review, ReviewState, ReviewStep, Version, utc_clock
from shared.catalog.quarantine import destroy, release
from shared.catalog.rereviews.starting import start_run
from shared.catalog.review_callbacks import accept_callback
from shared.catalog.review_policy import ReviewPolicy
from shared.catalog.reviewing import decide
from shared.core.errors import BloxError
from tests.integration.handlers.asking import asking_bucket
from tests.integration.handlers.test_crashes import check_all
from tests.integration.handlers.test_soak import lose_lease
from tests.support.eventually import eventually
from tests.support.handlers import TENANT, Stand
from tests.support.outbox import Thread
from tests.support.reviewer import Reviewer

pytestmark = pytest.mark.databases("mariadb")

BUCKET = "asked"
CONTENTS = [b"a harmless text", b"a perhaps odd text", b"a forbidden text", b"another text"]
KEYS = ["a", "b"]
OPERATIONS = 60
#: Rules that the bucket has in turn; the words make contents good, doubtful or bad.
POLICIES: list[dict[str, Any]] = [
    {"reject_keywords": ["forbidden"]},
    {"reject_keywords": ["perhaps"], "doubtful_keywords": ["another"]},
    {"doubtful_keywords": ["perhaps"], "fail_mode": "human"},
]


@pytest.fixture
def crowd(blox_url: str, tmp_path: Path, stand: Stand) -> Iterator[list[Stand]]:
    made = [Stand(blox_url, tmp_path, node=f"worker-{n}") for n in range(3)]
    yield made
    for one in made:
        one.close()


class Actors:
    """Everybody who does something, each with dice of its own."""

    def __init__(self, stand: Stand, reviewer: Reviewer) -> None:
        self.stand, self.reviewer = stand, reviewer
        self.bucket = asking_bucket(stand, reviewer, BUCKET, **POLICIES[0])
        self.done = threading.Event()

    def write(self) -> None:
        """Put and delete."""
        dice = random.Random("client")
        for _ in range(OPERATIONS):
            key = dice.choice(KEYS)
            if dice.random() < 0.2:
                self.stand.remove(self.bucket, key)
            else:
                put = self.stand.put(self.bucket, key, dice.choice(CONTENTS))
                if dice.random() < 0.5:
                    with suppress(AssertionError):
                        eventually(lambda put=put: self._is_over(put.version_id), 1)

    def _is_over(self, version_id: int) -> bool:
        return self.stand.version(version_id).state not in ("pending", "reviewing")

    def call_back(self) -> None:
        """Answer what waits, some of it twice and otherwise."""
        dice = random.Random("reviewer")
        while not self.done.is_set():
            for step_id in self._waiting():
                for _ in range(dice.choice((1, 1, 2))):
                    outcome = dice.choices(("pass", "reject", "doubtful"), (8, 1, 1))[0]
                    self.answer(step_id, outcome, f"m{dice.random()}")
            self.done.wait(0.02)

    def answer(self, step_id: int, outcome: str, message_id: str) -> None:
        headers, body = self.reviewer.message(
            {"outcome": outcome}, step_id=step_id, message_id=message_id
        )
        with suppress(BloxError):
            self.stand.db.run_session(
                lambda session: accept_callback(
                    session,
                    self.stand.catalogue,
                    step_id,
                    headers=headers,
                    body=body,
                    box=self.stand.secrets,
                    now=int(headers["webhook-timestamp"]),
                )
            )

    def judge(self) -> None:
        """Decide what is doubtful, release or destroy some of what is blocked."""
        dice = random.Random("person")
        while not self.done.is_set():
            for review_id, state in self._reviews():
                if state == ReviewState.DOUBTFUL:
                    self._act(decide, review_id, approve=dice.random() < 0.5)
                elif dice.random() < 0.1:
                    self._act(dice.choice((release, destroy)), review_id)
            self.done.wait(0.05)

    def change_rules(self) -> None:
        """Change the policy, which has the bucket reviewed again, and now and then ask for it."""
        asked = {"kind": "webhook", "name": "far", "reviewer": "elsewhere"}
        turn = 0
        while not self.done.wait(0.2):
            turn += 1
            rules = {**POLICIES[turn % len(POLICIES)], "reviewers": [asked]}
            spec = BucketSpec(channels=["a", "b"], review_policy=ReviewPolicy.model_validate(rules))
            self.stand.db.run_session(
                lambda s, spec=spec: put_bucket(  # type: ignore[misc]
                    s, TENANT, BUCKET, spec, catalogue=self.stand.catalogue
                )
            )
            if turn % 3:
                continue
            with suppress(BloxError):
                self.stand.db.run_session(
                    lambda s: start_run(s, self.stand.catalogue, TENANT, BUCKET, by="ann")
                )

    def _act(self, action: Callable[..., Any], review_id: int, **options: Any) -> None:
        with suppress(BloxError):
            self.stand.db.run_session(
                lambda session: action(
                    session, self.stand.catalogue, review_id, by="ann", **options
                )
            )

    def _waiting(self) -> list[int]:
        return self.stand.look(
            lambda session: list(
                session.scalars(
                    sa.select(ReviewStep.id)
                    .join(Review, Review.id == ReviewStep.review_id)
                    .where(ReviewStep.outcome == "waiting", Review.state == "open")
                )
            )
        )

    def _reviews(self) -> list[tuple[int, str]]:
        chosen = (ReviewState.DOUBTFUL, ReviewState.REJECTED)
        rows = self.stand.look(
            lambda session: session.execute(
                sa.select(Review.id, Review.state).where(Review.state.in_(chosen))
            ).all()
        )
        return [(row.id, row.state) for row in rows]


def due(stand: Stand) -> list[int]:
    """Return what a worker would be given: not what sleeps until somebody calls back."""
    names = ("review", "upload", "delete")
    return [
        task_id
        for name in names
        for task_id in stand.waiting(name)
        if stand.state(task_id) != "scheduled"
    ]


def work(stand: Stand, done: threading.Event) -> None:
    """Take waiting tasks, whoever else does, some with a lease that is lost meanwhile."""
    dice = random.Random(stand.bench.context.node)
    while not done.is_set():
        waiting = due(stand)
        if not waiting:
            done.wait(0.01)
            continue
        try:
            execution = stand.claim(dice.choice(waiting))
        except AssertionError:
            continue  # Another was faster, or it was superseded.
        if dice.random() < 0.1:
            lose_lease(stand, execution.task.id)
        with suppress(BloxError):
            stand.run(execution)


def test_nothing_bad_is_served_and_nothing_is_left(
    stand: Stand, crowd: list[Stand], reviewer: Reviewer
) -> None:
    actors = Actors(stand, reviewer)
    workers = [Thread(lambda one=one: work(one, actors.done)) for one in crowd]  # type: ignore[misc]
    others = [Thread(actors.call_back), Thread(actors.judge), Thread(actors.change_rules)]
    writer = Thread(actors.write)
    writer.join_answer(100)
    actors.done.set()
    for one in (*workers, *others):
        one.join_answer(60)

    settle(stand, actors)
    now = stand.look(lambda session: session.scalar(sa.select(utc_clock())))
    assert now is not None
    breaches = stand.look(
        lambda s: list(row_breaches(s, now=now, late_seconds=0.0, sweep_seconds=0.0))
    )
    assert breaches == []
    check_all(stand)
    states = stand.look(lambda session: set(session.scalars(sa.select(Version.state))))
    assert {"stored", "blocked"} & states, "nothing has happened"
    assert reviewer.forged == 0


def settle(stand: Stand, actors: Actors) -> None:
    """Bring back what a lost lease left, answer everything, and run it all to its end."""
    for _ in range(50):
        with stand.db.engine.begin() as connection:
            connection.execute(
                sa.text(
                    "UPDATE tasks SET state = 'pending', owner = NULL, lease_until = NULL "
                    "WHERE state = 'running'"
                )
            )
        for number, step_id in enumerate(actors._waiting()):
            actors.answer(step_id, "pass", f"last{number}")
        for review_id, state in actors._reviews():
            if state == ReviewState.DOUBTFUL:
                actors._act(decide, review_id, approve=True)
        if not sum(len(stand.work_all(name)) for name in ("review", "upload", "delete")):
            return
    raise AssertionError("it never comes to rest")
