"""Reviews: what passes, what is blocked, what a person decides, and what failures mean."""

from __future__ import annotations

import hashlib

import pytest
import sqlalchemy as sa

from services.review.handlers import Deps
from services.review.sandbox import SandboxLimits
from shared.catalog.models import Review, ReviewStep, Verdict
from shared.catalog.puts import PutAnswer
from shared.catalog.review_cases import Step, record_steps
from shared.catalog.reviewing import decide, decide_overdue
from shared.core.clock import Deadline
from shared.core.errors import ConflictError, NotFoundError
from shared.outbox import Fail
from tests.support.handlers import Stand

GOOD = b"a harmless text"
BAD = b"a forbidden text"
ODD = b"a perhaps odd text"
POLICY = {"reject_keywords": ["forbidden"], "doubtful_keywords": ["perhaps"]}


def steps(stand: Stand, version_id: int) -> dict[str, str]:
    review_id = stand.review_of(version_id).id
    return stand.look(
        lambda session: {
            row.step: row.outcome
            for row in session.scalars(
                sa.select(ReviewStep).where(ReviewStep.review_id == review_id)
            )
        }
    )


def verdicts(stand: Stand) -> list[str]:
    return stand.look(lambda session: list(session.scalars(sa.select(Verdict.outcome))))


def judge(stand: Stand, put: PutAnswer, *, approve: bool, tenant_id: str = "acme") -> Review:
    review_id = stand.review_of(put.version_id).id
    return stand.db.run_session(
        lambda session: decide(
            session,
            stand.catalogue,
            review_id,
            approve=approve,
            by="ann",
            reason="looked at it",
            tenant_id=tenant_id,
        )
    )


def test_good_content_passes_and_is_stored(stand: Stand) -> None:
    bucket = stand.bucket(**POLICY)
    put = stand.put(bucket, "a.txt", GOOD)
    assert put.state == "reviewing"
    assert stand.object(bucket, "a.txt").served_version_id is None

    assert stand.work(put.task_id) == "completed"
    assert stand.version(put.version_id).state == "pending"
    assert stand.object(bucket, "a.txt").served_version_id == put.version_id
    review = stand.review_of(put.version_id)
    assert (review.state, review.decided_by) == ("passed", "reviewer")
    assert steps(stand, put.version_id) == dict.fromkeys(
        ("size", "block_list", "declared_type", "keywords"), "pass"
    )
    assert verdicts(stand) == ["pass"]

    assert stand.work_all("upload") == ["completed"]
    assert stand.stored_bytes(put.version_id) == GOOD


@pytest.mark.parametrize(
    ("policy", "content", "content_type", "step"),
    [
        (POLICY, BAD, "text/plain", "keywords"),
        ({"max_bytes": 3}, GOOD, "text/plain", "size"),
        ({"min_bytes": 100}, GOOD, "text/plain", "size"),
        (
            {"blocked_sha256": [hashlib.sha256(GOOD).hexdigest()]},
            GOOD,
            "text/plain",
            "block_list",
        ),
        (POLICY, GOOD, "image/png", "declared_type"),
    ],
)
def test_bad_content_is_blocked(
    stand: Stand, policy: dict[str, object], content: bytes, content_type: str, step: str
) -> None:
    bucket = stand.bucket(**policy)
    put = stand.put(bucket, "a.txt", content, content_type)
    assert stand.work(put.task_id) == "completed"
    version = stand.version(put.version_id)
    assert version.state == "blocked"
    assert stand.object(bucket, "a.txt").served_version_id is None
    review = stand.review_of(put.version_id)
    assert review.state == "rejected"
    assert review.reason.startswith(step)
    assert steps(stand, put.version_id)[step] == "reject"
    assert stand.waiting("upload") == []
    # Quarantine: the bytes stay, named, until their time is over.
    assert version.staging_key is not None
    assert version.staging_until is not None
    assert stand.is_staged(version.staging_key)
    assert verdicts(stand) == ["reject"]


def test_verdict_is_used_again(stand: Stand) -> None:
    bucket = stand.bucket(**POLICY)
    first = stand.put(bucket, "a.txt", BAD)
    stand.work(first.task_id)
    second = stand.put(bucket, "b.txt", BAD)
    stand.work(second.task_id)
    review = stand.review_of(second.version_id)
    assert (review.state, review.decided_by) == ("rejected", "verdict")
    assert steps(stand, second.version_id) == {}


def test_verdict_does_not_hold_for_another_declared_type(stand: Stand) -> None:
    bucket = stand.bucket(**POLICY)
    stand.work(stand.put(bucket, "a.txt", GOOD).task_id)
    second = stand.put(bucket, "b.png", GOOD, "image/png")
    stand.work(second.task_id)
    assert stand.review_of(second.version_id).state == "rejected"


def test_verdict_does_not_hold_for_other_rules(stand: Stand) -> None:
    stand.work(stand.put(stand.bucket(**POLICY), "a.txt", GOOD).task_id)
    strict = stand.bucket("strict", reject_keywords=["harmless"])
    second = stand.put(strict, "a.txt", GOOD)
    stand.work(second.task_id)
    assert stand.review_of(second.version_id).state == "rejected"


def test_passed_and_stored_content_is_instant(stand: Stand) -> None:
    bucket = stand.bucket(**POLICY)
    stand.work(stand.put(bucket, "a.txt", GOOD).task_id)
    stand.work_all("upload")
    again = stand.put(bucket, "b.txt", GOOD)
    assert again.instant
    # Stored without a review elsewhere is not passed here.
    strict = stand.bucket("strict", reject_keywords=["x"])
    assert not stand.put(strict, "a.txt", GOOD).instant


def test_older_version_stays_readable_until_the_newer_one_passed(stand: Stand) -> None:
    bucket = stand.bucket(**POLICY)
    old = stand.put(bucket, "a.txt", GOOD)
    stand.work(old.task_id)
    bad = stand.put(bucket, "a.txt", BAD)
    assert stand.object(bucket, "a.txt").served_version_id == old.version_id
    stand.work(bad.task_id)
    assert stand.object(bucket, "a.txt").served_version_id == old.version_id
    assert stand.work_all("upload") == ["completed"]
    assert stand.object(bucket, "a.txt").current_version_id == old.version_id


def test_passing_supersedes_the_older_unfinished_upload(stand: Stand) -> None:
    bucket = stand.bucket(**POLICY)
    old = stand.put(bucket, "a.txt", GOOD)
    stand.work(old.task_id)
    (old_upload,) = stand.waiting("upload")
    new = stand.put(bucket, "a.txt", b"a newer text")
    assert stand.state(old_upload) == "pending"
    staged_key = stand.version(old.version_id).staging_key
    stand.work(new.task_id)
    assert stand.state(old_upload) == "cancelled"
    assert stand.version(old.version_id).state == "superseded"
    assert staged_key is not None
    assert not stand.is_staged(staged_key)
    assert stand.work_all("upload") == ["completed"]
    assert stand.stored_bytes(new.version_id) == b"a newer text"


def test_passing_supersedes_an_older_review(stand: Stand) -> None:
    bucket = stand.bucket(**POLICY)
    old = stand.put(bucket, "a.txt", ODD)
    stand.work(old.task_id)
    waiting = stand.put(bucket, "a.txt", BAD)
    new = stand.put(bucket, "a.txt", GOOD)
    stand.work(new.task_id)
    for one in (old, waiting):
        assert stand.version(one.version_id).state == "superseded"
        assert stand.review_of(one.version_id).state == "superseded"
    assert stand.state(waiting.task_id) == "cancelled"
    with pytest.raises(ConflictError):
        judge(stand, old, approve=True)


def test_doubtful_content_waits_for_a_person_who_approves(stand: Stand) -> None:
    bucket = stand.bucket(**POLICY)
    put = stand.put(bucket, "a.txt", ODD)
    assert stand.work(put.task_id) == "completed"
    review = stand.review_of(put.version_id)
    assert review.state == "doubtful"
    assert review.deadline_at is not None
    assert stand.version(put.version_id).state == "reviewing"
    assert stand.waiting("upload") == []
    assert verdicts(stand) == []

    decided = judge(stand, put, approve=True)
    assert (decided.state, decided.decided_by) == ("passed", "ann")
    assert verdicts(stand) == ["pass"]
    assert stand.work_all("upload") == ["completed"]
    assert stand.stored_bytes(put.version_id) == ODD
    # The same content again needs nobody.
    assert stand.put(bucket, "b.txt", ODD).instant


def test_doubtful_content_that_a_person_rejects_is_blocked(stand: Stand) -> None:
    put = stand.put(stand.bucket(**POLICY), "a.txt", ODD)
    stand.work(put.task_id)
    judge(stand, put, approve=False)
    assert stand.version(put.version_id).state == "blocked"
    assert stand.waiting("upload") == []
    with pytest.raises(ConflictError) as caught:
        judge(stand, put, approve=True)
    assert caught.value.code == "review_not_waiting"


def test_nobody_is_asked_while_reviewers_look(stand: Stand) -> None:
    put = stand.put(stand.bucket(**POLICY), "a.txt", ODD)
    with pytest.raises(ConflictError):
        judge(stand, put, approve=True)


def test_another_tenants_review_is_not_there(stand: Stand) -> None:
    put = stand.put(stand.bucket(**POLICY), "a.txt", ODD)
    stand.work(put.task_id)
    with pytest.raises(NotFoundError):
        judge(stand, put, approve=True, tenant_id="other")
    assert stand.review_of(put.version_id).state == "doubtful"


def test_deleted_while_a_person_is_asked(stand: Stand) -> None:
    bucket = stand.bucket(**POLICY)
    put = stand.put(bucket, "a.txt", ODD)
    stand.work(put.task_id)
    stand.remove(bucket, "a.txt")
    with pytest.raises(ConflictError):
        judge(stand, put, approve=True)
    assert stand.version(put.version_id).state == "deleted"


@pytest.mark.parametrize(
    ("fail_mode", "review_state", "version_state"),
    [
        ("closed", "rejected", "blocked"),
        ("open", "passed", "pending"),
        ("human", "doubtful", "reviewing"),
    ],
)
def test_reviewer_that_cannot_judge_leaves_it_to_the_fail_mode(
    stand: Stand, fail_mode: str, review_state: str, version_state: str
) -> None:
    stand.review = Deps(
        db=stand.db,
        catalogue=stand.catalogue,
        staging=stand.staging,
        limits=SandboxLimits(seconds=0.0),
    )
    put = stand.put(stand.bucket(**POLICY, fail_mode=fail_mode), "a.txt", GOOD)
    assert stand.work(put.task_id) == "completed"
    review = stand.review_of(put.version_id)
    assert (review.state, stand.version(put.version_id).state) == (review_state, version_state)
    assert steps(stand, put.version_id)["keywords"] == "error"
    # It says nothing of the content.
    assert verdicts(stand) == []
    assert len(stand.waiting("upload")) == (fail_mode == "open")


@pytest.mark.parametrize(
    ("fail_mode", "version_state"),
    [("closed", "blocked"), ("open", "pending"), ("human", "reviewing")],
)
def test_review_task_that_failed_leaves_it_to_the_fail_mode(
    stand: Stand, fail_mode: str, version_state: str
) -> None:
    put = stand.put(stand.bucket(**POLICY, fail_mode=fail_mode), "a.txt", GOOD)
    execution = stand.claim(put.task_id)
    stand.bench.answers.settle(execution, Fail("broken"))
    assert stand.version(put.version_id).state == version_state


def test_staging_that_cannot_be_read_is_tried_again(stand: Stand) -> None:
    put = stand.put(stand.bucket(**POLICY), "a.txt", GOOD)
    root = stand.staging.channel.root.path
    root.rename(root.with_name("away"))
    assert stand.work(put.task_id) == "scheduled"
    assert steps(stand, put.version_id)["keywords"] == "retry"
    root.with_name("away").rename(root)
    assert stand.work(put.task_id) == "completed"
    assert stand.review_of(put.version_id).state == "passed"


def test_missing_bytes_fail_the_review(stand: Stand) -> None:
    put = stand.put(stand.bucket(**POLICY), "a.txt", GOOD)
    key = stand.version(put.version_id).staging_key
    assert key is not None
    stand.staging.remove(key, deadline=Deadline(5))
    assert stand.work(put.task_id) == "failed"
    assert stand.version(put.version_id).state == "blocked"


def test_wait_for_a_person_ends(stand: Stand) -> None:
    put = stand.put(stand.bucket(**POLICY, human_seconds=3600), "a.txt", ODD)
    stand.work(put.task_id)
    review = stand.review_of(put.version_id)

    def end() -> bool:
        return stand.db.run_session(
            lambda session: decide_overdue(session, stand.catalogue, review.id)
        )

    assert not end()
    with stand.db.engine.begin() as connection:
        connection.execute(sa.update(Review).values(deadline_at=review.created_at))
    assert end()
    assert stand.version(put.version_id).state == "blocked"
    assert stand.review_of(put.version_id).decided_by == "deadline"
    assert not end()


def test_policy_without_content_steps_reads_nothing(stand: Stand) -> None:
    put = stand.put(stand.bucket(type_mismatch="ignore", max_bytes=100), "a.png", GOOD)
    key = stand.version(put.version_id).staging_key
    assert key is not None
    stand.staging.remove(key, deadline=Deadline(5))
    assert stand.work(put.task_id) == "completed"
    assert stand.review_of(put.version_id).state == "passed"


def test_decided_already_is_fine(stand: Stand) -> None:
    put = stand.put(stand.bucket(**POLICY), "a.txt", GOOD)
    assert put.task_id is not None
    stand.work(put.task_id)
    stand.bench.set(put.task_id, state="pending")
    assert stand.work(put.task_id) == "completed"
    assert len(stand.waiting("upload")) == 1


def test_judgement_is_not_replaced_by_who_could_not_look(stand: Stand) -> None:
    """As an execution says that has lost its task to the one that has found something."""
    put = stand.put(stand.bucket("asked", reviewers=[]), "a.txt", b"text")
    review_id = stand.review_of(put.version_id).id

    def record(outcome: str) -> str:
        found = [Step("keywords", outcome, "", "built_in")]
        stand.db.run_session(lambda session: record_steps(session, review_id, found))
        return steps(stand, put.version_id)["keywords"]

    assert record("retry") == "retry"
    assert record("reject") == "reject"
    assert record("retry") == "reject"
    assert record("error") == "reject"
    assert record("doubtful") == "doubtful"
