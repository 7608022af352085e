"""Restores spare what was acknowledged later, also what cannot be read yet."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy.orm import Session

from shared.catalog.backups.retention import prune_run
from shared.catalog.models import Bucket
from shared.catalog.review_policy import ReviewPolicy
from shared.core.errors import ConflictError
from shared.outbox.cancel import cancel
from shared.outbox.manual import retry
from tests.integration.backup.test_restores import bytes_of, open_one
from tests.support.backups import TARGET, BackupStand
from tests.support.outbox import Thread

pytestmark = pytest.mark.databases("mariadb")


def reviewed_and_backed_up(stand: BackupStand) -> int:
    """Return a reviewed bucket whose key `k` is in a backup, and deleted since."""
    bucket = stand.backed_up()
    policy = ReviewPolicy.model_validate({"reject_keywords": ["bad"]}).model_dump(mode="json")

    def review(session: Session) -> None:
        session.get_one(Bucket, bucket).review_policy = policy

    stand.db.run_session(review)
    stand.work(stand.put(bucket, "k", b"backed up").task_id)
    stand.work_all("upload")
    stand.back_up(bucket)
    stand.remove(bucket, "k")
    return bucket


@pytest.mark.parametrize(
    ("policy", "outcome"), [("never", "kept"), ("if-newer", "older"), ("always", "restored")]
)
def test_what_waits_for_its_review_is_there(stand: BackupStand, policy: str, outcome: str) -> None:
    bucket = reviewed_and_backed_up(stand)
    newer = stand.put(bucket, "k", b"sent again")
    restore = stand.bring_back(bucket, policy=policy)
    assert stand.outcomes(restore.id) == {"k": outcome}
    if policy == "always":
        assert stand.version(newer.version_id).state == "superseded"
        assert bytes_of(stand, bucket, "k") == b"backed up"
        return
    assert stand.version(newer.version_id).state == "reviewing"
    assert stand.work(newer.task_id) == "completed"
    assert bytes_of(stand, bucket, "k") == b"sent again"


def test_what_is_sent_for_review_while_a_key_is_decided_on_is_there(stand: BackupStand) -> None:
    bucket = reviewed_and_backed_up(stand)
    stand.work_all("delete")
    fetched = stand.channels.faulty[TARGET].hold("get")
    worker = Thread(lambda: stand.bring_back(bucket))
    assert fetched.reached.wait(10)
    fetched.release()
    # The manifest is being read, or the content: nothing is decided for good yet.
    newer = stand.put(bucket, "k", b"sent again")
    worker.join_answer()
    assert stand.version(newer.version_id).state == "reviewing"
    assert stand.work(newer.task_id) == "completed"
    assert bytes_of(stand, bucket, "k") == b"sent again"


def test_a_restore_whose_backup_went_is_not_gone_on_with_in_another(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    stand.stored(bucket, "k", b"oldest")
    stand.back_up(bucket)
    stand.stored(bucket, "k", b"older")
    second = stand.back_up(bucket)
    stand.stored(bucket, "k", b"present")
    stand.back_up(bucket)
    begun = open_one(stand, bucket, run=second.id, policy="always")
    assert begun.task_id is not None
    cancel(stand.bench.context, stand.bench.enqueuer, begun.task_id, by="ann")
    retry(stand.bench.context, begun.task_id, by="ann")
    assert stand.restore_row(begun.id).state == "open"
    cancel(stand.bench.context, stand.bench.enqueuer, begun.task_id, by="ann")
    stand.db.run_session(lambda session: prune_run(session, second.id))
    with pytest.raises(ConflictError) as refused:
        retry(stand.bench.context, begun.task_id, by="ann")
    assert refused.value.code == "backup_gone"
    assert stand.restore_row(begun.id).state == "cancelled"
    assert bytes_of(stand, bucket, "k") == b"present"


def test_a_full_staging_is_waited_for_and_nobody_elses_fault(stand: BackupStand) -> None:
    bucket = stand.backed_up()
    stand.stored(bucket, "k", b"content")
    stand.back_up(bucket)
    stand.remove(bucket, "k")
    stand.work_all("delete")
    roomy = stand.restore
    stand.restore = replace(roomy, reserve_bytes=2**60)
    begun = open_one(stand, bucket)
    assert begun.task_id is not None
    assert stand.work(begun.task_id) == "scheduled"
    assert stand.bench.columns(begun.task_id)["attempt"] == 0
    assert [one.state for one in stand.contents()] == ["stored"]
    stand.restore = roomy
    stand.bench.set(begun.task_id, state="pending")
    assert stand.work(begun.task_id) == "completed"
    assert bytes_of(stand, bucket, "k") == b"content"
