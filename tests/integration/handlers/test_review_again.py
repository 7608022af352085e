"""What a failure has blocked may be reviewed again, as long as there is a place for it."""

from __future__ import annotations

import pytest

from shared.catalog.buckets import delete_bucket
from shared.catalog.puts import PutAnswer
from shared.core.errors import ConflictError
from shared.outbox.manual import retry
from tests.support.handlers import Stand

GOOD = b"a harmless text"


def blocked_by_failure(stand: Stand) -> tuple[int, PutAnswer]:
    bucket = stand.bucket(reject_keywords=["forbidden"])
    put = stand.put(bucket, "a.txt", GOOD)
    root = stand.staging.channel.root.path
    root.rename(root.with_name("away"))
    while stand.work(put.task_id) != "failed":
        stand.bench.set(put.task_id or 0, state="pending")
    root.with_name("away").rename(root)
    assert stand.version(put.version_id).state == "blocked"
    return bucket, put


def again(stand: Stand, put: PutAnswer) -> None:
    retry(stand.bench.context, put.task_id or 0, by="ann")


def test_content_that_a_failure_blocked_is_reviewed_again(stand: Stand) -> None:
    _, put = blocked_by_failure(stand)
    again(stand, put)
    assert stand.work(put.task_id) == "completed"
    assert stand.version(put.version_id).state == "pending"


def test_blocked_content_does_not_come_back_after_a_delete(stand: Stand) -> None:
    bucket, put = blocked_by_failure(stand)
    stand.remove(bucket, "a.txt")
    with pytest.raises(ConflictError) as caught:
        again(stand, put)
    assert caught.value.code == "bytes_gone"
    # The quarantine keeps the bytes all the same.
    version = stand.version(put.version_id)
    assert version.state == "blocked"
    assert version.staging_key is not None
    assert stand.is_staged(version.staging_key)
    assert stand.blob(version.blob_id).state == "deleted"


def test_blocked_content_does_not_come_back_into_a_bucket_that_is_gone(stand: Stand) -> None:
    _, put = blocked_by_failure(stand)
    stand.db.run_session(lambda session: delete_bucket(session, "acme", "photos"))
    with pytest.raises(ConflictError) as caught:
        again(stand, put)
    assert caught.value.code == "bucket_gone"
    assert stand.version(put.version_id).state == "blocked"
