"""Reviewed buckets: what is readable when, what supersedes what, reviews that end by accident."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from shared.catalog.locking import LockedKey, lock_version
from shared.catalog.models import (
    Blob,
    Bucket,
    Review,
    StepOutcome,
    Verdict,
    Version,
    utc_now,
)
from shared.catalog.review_policy import FailMode, ReviewPolicy
from shared.catalog.versions import promote, reject
from shared.core.errors import ConflictError, NotFoundError
from shared.outbox.ends import End, Ends
from shared.outbox.states import State
from tests.support.catalogue import TENANT, World, staged


def reviewed(world: World, fail_mode: FailMode = "closed") -> int:
    return world.bucket("reviewed", policy=ReviewPolicy(fail_mode=fail_mode))


def pass_review(world: World, version_id: int) -> int:
    task_id = world.get(Version, version_id).task_id or 0

    def work(session: sa.orm.Session) -> int:
        locked = lock_version(session, version_id, task_id=task_id)
        _decide(session, locked, "passed")
        return promote(session, world.catalogue, locked)

    answer = world.run(work)
    world.set_task(task_id, state="completed")
    return answer


def refuse(world: World, version_id: int) -> None:
    task_id = world.get(Version, version_id).task_id or 0

    def work(session: sa.orm.Session) -> None:
        locked = lock_version(session, version_id)
        _decide(session, locked, "rejected")
        reject(session, world.catalogue, locked, code="block_list", quarantine_seconds=60.0)

    world.run(work)
    world.set_task(task_id, state="completed")


def _decide(session: sa.orm.Session, locked: LockedKey, state: str) -> None:
    session.execute(
        sa.update(Review)
        .where(Review.version_id == locked.the_version().id)
        .values(state=state, decided_by="reviewer", decided_at=utc_now())
    )


def end_task(world: World, task_id: int | None, state: State, code: str) -> None:
    """End a task as the scans do, with its kind's hooks."""
    Ends(world.outbox.context, world.outbox).end(
        task_id or 0, lambda _row: End(state=state, code=code, outcome=state.value)
    )


def fail_task(world: World, task_id: int | None, code: str = "crashed") -> None:
    world.set_running(task_id or 0)
    end_task(world, task_id, State.FAILED, code)


def test_put_writes_a_review_and_is_not_readable(world: World) -> None:
    bucket = reviewed(world)
    answer = world.put(bucket, "k")
    assert answer.state == "reviewing"
    task = world.task(answer.task_id)
    [review] = world.all(Review)
    assert task.kind == "review.check"
    assert task.payload["p"] == {
        "version_id": answer.version_id,
        "blob_id": review.blob_id,
        "review_id": review.id,
    }
    assert (review.state, review.policy_version) == (
        "open",
        world.get(Bucket, bucket).review_policy_version,
    )
    assert ReviewPolicy.model_validate(review.policy) == ReviewPolicy()
    with pytest.raises(NotFoundError):
        world.read(bucket, "k")
    world.check()


def test_passed_version_is_readable_from_staging_and_then_stored(world: World) -> None:
    bucket = reviewed(world)
    answer = world.put(bucket, "k")
    upload = pass_review(world, answer.version_id)
    assert world.task(upload).kind == "upload.store"
    assert world.get(Version, answer.version_id).task_id == upload
    assert world.read(bucket, "k").state == "pending"
    world.check()
    assert world.store(answer.version_id)
    world.check()


def test_a_version_in_review_supersedes_nothing_until_it_passes(world: World) -> None:
    bucket = reviewed(world)
    old = world.put(bucket, "k", b"old")
    upload = pass_review(world, old.version_id)
    middle = world.put(bucket, "k", b"middle")
    new = world.put(bucket, "k", b"new")
    assert world.get(Version, old.version_id).state == "pending"
    assert world.get(Version, middle.version_id).state == "reviewing"
    assert world.read(bucket, "k").version_id == old.version_id
    world.check()
    pass_review(world, new.version_id)
    assert world.get(Version, old.version_id).state == "superseded"
    assert world.get(Version, middle.version_id).state == "superseded"
    assert {world.task(task).error_code for task in (upload, middle.task_id)} == {"superseded"}
    assert world.read(bucket, "k").version_id == new.version_id
    superseded = [r for r in world.all(Review) if r.version_id == middle.version_id]
    assert [review.state for review in superseded] == ["superseded"]
    world.check()


def test_an_older_upload_may_commit_while_a_newer_one_is_reviewed(world: World) -> None:
    bucket = reviewed(world)
    old = world.put(bucket, "k", b"old")
    pass_review(world, old.version_id)
    new = world.put(bucket, "k", b"new")
    assert world.store(old.version_id)
    refuse(world, new.version_id)
    assert world.read(bucket, "k").version_id == old.version_id
    blocked = world.get(Version, new.version_id)
    assert blocked.state == "blocked"
    assert blocked.staging_key is not None
    assert blocked.staging_until is not None
    assert world.get(Blob, blocked.blob_id).state == "deleted"
    world.check()


def test_an_older_version_that_passes_late_gives_way_to_a_newer_one(world: World) -> None:
    bucket = reviewed(world)
    old = world.put(bucket, "k", b"old")
    new = world.put(bucket, "k", b"new")
    pass_review(world, new.version_id)
    assert world.get(Version, old.version_id).state == "superseded"
    assert world.store(new.version_id)
    world.check()


def test_known_content_needs_a_passing_verdict(world: World, bucket: int) -> None:
    inspected = reviewed(world)
    world.put_stored(bucket, "open", b"same")
    assert not world.put(inspected, "k", b"same").instant
    policy = ReviewPolicy()
    verdicts = [
        ("0" * 32, "text/plain", StepOutcome.PASS, False),
        (policy.version, "image/png", StepOutcome.PASS, False),
        (policy.version, "text/plain", StepOutcome.PASS, True),
    ]
    body = staged(b"same")
    for version, declared, outcome, is_instant in verdicts:

        def insert(session: sa.orm.Session) -> None:
            session.add(
                Verdict(
                    tenant_id=TENANT,
                    sha256=body.sha256,
                    policy_version=version,  # noqa: B023 - called at once
                    declared_type=declared,  # noqa: B023
                    outcome=outcome,  # noqa: B023
                    review_id=1,
                    created_at=utc_now(),
                )
            )

        world.run(insert)
        assert world.put(inspected, "k", b"same").instant == is_instant
    assert world.read(inspected, "k").state == "stored"
    world.check()


def test_a_rejecting_verdict_lets_nothing_pass(world: World, bucket: int) -> None:
    inspected = reviewed(world)
    world.put_stored(bucket, "open", b"same")
    body = staged(b"same")
    world.run(
        lambda session: session.add(
            Verdict(
                tenant_id=TENANT,
                sha256=body.sha256,
                policy_version=ReviewPolicy().version,
                declared_type="text/plain",
                outcome=StepOutcome.REJECT,
                review_id=1,
                created_at=utc_now(),
            )
        )
    )
    assert world.put(inspected, "k", b"same").state == "reviewing"


@pytest.mark.parametrize(
    ("fail_mode", "version_state", "review_state"),
    [
        ("closed", "blocked", "rejected"),
        ("open", "pending", "passed"),
        ("human", "reviewing", "doubtful"),
    ],
)
def test_a_review_that_fails_is_decided_by_the_fail_mode(
    world: World, fail_mode: FailMode, version_state: str, review_state: str
) -> None:
    bucket = reviewed(world, fail_mode)
    answer = world.put(bucket, "k")
    fail_task(world, answer.task_id)
    version = world.get(Version, answer.version_id)
    [review] = world.all(Review)
    assert (version.state, review.state) == (version_state, review_state)
    assert (review.deadline_at is not None) == (fail_mode == "human")
    assert len(world.open_tasks("upload.store")) == int(fail_mode == "open")
    if fail_mode == "open":
        assert world.read(bucket, "k").version_id == answer.version_id
        assert world.store(answer.version_id)
    if fail_mode != "human":
        world.check()


def test_open_fail_mode_supersedes_the_rows_of_older_work_and_their_tasks_find_out(
    world: World,
) -> None:
    bucket = reviewed(world, "open")
    old = world.put(bucket, "k", b"old")
    upload = pass_review(world, old.version_id)
    new = world.put(bucket, "k", b"new")
    fail_task(world, new.task_id)
    assert world.get(Version, old.version_id).state == "superseded"
    # A hook ends no other task: this one is still waiting and ends by itself.
    assert world.task(upload).state == "pending"
    assert not world.store(old.version_id, location_id=1)
    end_task(world, upload, State.CANCELLED, "superseded")
    world.check()


@pytest.mark.parametrize("fail_mode", ["closed", "open", "human"])
def test_a_cancelled_review_lets_nothing_pass(world: World, fail_mode: FailMode) -> None:
    bucket = reviewed(world, fail_mode)
    answer = world.put(bucket, "k")
    world.outbox.cancel(answer.task_id or 0, by="operator", reason="test")
    assert world.get(Version, answer.version_id).state == "blocked"
    with pytest.raises(NotFoundError):
        world.read(bucket, "k")
    world.check()


def test_a_review_that_nobody_decided_can_be_retried(world: World) -> None:
    bucket = reviewed(world)
    answer = world.put(bucket, "k")
    fail_task(world, answer.task_id)
    world.outbox.retry(answer.task_id or 0, by="operator", reason="test")
    version = world.get(Version, answer.version_id)
    [review] = world.all(Review)
    assert (version.state, version.staging_until, review.state) == ("reviewing", None, "open")
    world.check()
    pass_review(world, answer.version_id)
    assert world.store(answer.version_id)
    world.check()


def test_a_decided_review_cannot_be_retried(world: World) -> None:
    bucket = reviewed(world)
    answer = world.put(bucket, "k")
    refuse(world, answer.version_id)
    before = world.tables()
    with pytest.raises(ConflictError):
        world.outbox.retry(answer.task_id or 0, by="operator", reason="test", force=True)
    assert world.tables() == before


def test_a_failed_review_under_a_newer_version_cannot_be_retried(world: World) -> None:
    bucket = reviewed(world)
    old = world.put(bucket, "k", b"old")
    fail_task(world, old.task_id)
    new = world.put(bucket, "k", b"new")
    pass_review(world, new.version_id)
    with pytest.raises(ConflictError) as caught:
        world.outbox.retry(old.task_id or 0, by="operator", reason="test")
    assert caught.value.code == "superseded"


def test_a_superseded_review_task_leaves_its_version_when_nothing_newer_is_there(
    world: World,
) -> None:
    bucket = reviewed(world)
    answer = world.put(bucket, "k")
    end_task(world, answer.task_id, State.CANCELLED, "superseded")
    assert world.get(Version, answer.version_id).state == "blocked"
    world.check()
