"""Joining the parts of resumable uploads: the version, the result, and every way not to get one."""

from __future__ import annotations

import hashlib
import os

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.backups.manifest import Entry
from shared.catalog.conditions import ANY, Conditions
from shared.catalog.deletes import end_living
from shared.catalog.invariants.rows import row_breaches
from shared.catalog.locking import lock_key
from shared.catalog.models import Bucket, SessionState
from shared.catalog.removals import start_removal
from shared.catalog.restores.keys import decide
from shared.catalog.uploading.arriving import is_arriving
from shared.catalog.uploading.rules import WantedPart, multipart_etag
from shared.core.clock import utc_now
from shared.core.errors import ConflictError, InvalidError, PreconditionError
from shared.outbox.breach import Breach
from shared.outbox.cancel import cancel
from shared.outbox.manual import retry
from tests.integration.handlers.sweeping import passes, sweeper
from tests.support.handlers import TENANT, Stand
from tests.support.uploads import (
    backdate,
    begin,
    complete,
    files,
    frozen,
    outcome,
    parts,
    row,
    send,
    version_of,
)

PARTS = [os.urandom(200_000), os.urandom(150_000), b"the end"]
WHOLE = b"".join(PARTS)


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def breaches(stand: Stand) -> list[Breach]:
    now = utc_now()
    return stand.look(
        lambda session: list(row_breaches(session, now=now, late_seconds=0, sweep_seconds=0))
    )


def test_parts_become_a_version_as_a_put_makes_it(stand: Stand) -> None:
    bucket = stand.bucket()
    sha256 = hashlib.sha256(WHOLE).hexdigest()
    upload = begin(stand, bucket, "a", size=len(WHOLE), sha256=sha256, metadata={"colour": "red"})
    for number in (3, 1, 2):
        send(stand, upload, number, PARTS[number - 1])
    upload = complete(stand, upload)
    assert stand.work(upload.task_id) == "completed"
    state, result = outcome(stand, upload)
    version = version_of(stand, upload)
    etag = multipart_etag([md5(part) for part in PARTS])
    assert state == SessionState.DONE
    assert result == {
        "bucket": "photos",
        "key": "a",
        "version_id": version.id,
        "generation": 1,
        "state": "pending",
        "task_id": version.task_id,
        "etag": etag,
        "size": len(WHOLE),
        "sha256": sha256,
    }
    assert etag.endswith("-3")
    assert (version.etag, version.user_metadata) == (etag, {"colour": "red"})
    # Only the version's own file is left, and after its upload none.
    assert files(stand) == {version.staging_key}
    assert parts(stand, upload) == []
    assert stand.work(version.task_id) == "completed"
    assert stand.stored_bytes(version.id) == WHOLE
    assert files(stand) == set()
    # The result is kept for its time, however many sweeps pass.
    passes(sweeper(stand), 2)
    assert outcome(stand, upload) == (state, result)
    backdate(stand, upload)
    passes(sweeper(stand))
    assert row(stand, upload) is None
    assert stand.stored_bytes(version.id) == WHOLE


def test_lone_part_is_taken_as_it_is(stand: Stand) -> None:
    upload = frozen(stand, stand.bucket(), "a", [b"hello"])
    (part,) = parts(stand, upload)
    assert stand.work(upload.task_id) == "completed"
    version = version_of(stand, upload)
    assert version.staging_key == part.staging_key
    assert version.etag == f"{hashlib.md5(hashlib.md5(b'hello').digest()).hexdigest()}-1"
    assert stand.work_all("upload") == ["completed"]
    assert stand.stored_bytes(version.id) == b"hello"


def test_last_write_of_a_part_counts(stand: Stand) -> None:
    upload = begin(stand, stand.bucket(), "a")
    send(stand, upload, 1, b"first")
    send(stand, upload, 1, b"second")
    send(stand, upload, 2, b", last")
    assert stand.work(complete(stand, upload).task_id) == "completed"
    assert stand.work_all("upload") == ["completed"]
    assert stand.stored_bytes(version_of(stand, upload).id) == b"second, last"


def test_named_parts_alone_count_and_are_compared(stand: Stand) -> None:
    upload = begin(stand, stand.bucket(), "a")
    for number, content in ((1, b"one"), (5, b"five"), (9, b"nine")):
        send(stand, upload, number, content)
    with pytest.raises(InvalidError, match="part 2 has not come"):
        complete(stand, upload)
    with pytest.raises(InvalidError, match="another etag"):
        complete(stand, upload, parts=(WantedPart(number=1, etag=md5(b"two")),))
    with pytest.raises(InvalidError, match="growing"):
        complete(stand, upload, parts=(WantedPart(number=5), WantedPart(number=1)))
    with pytest.raises(InvalidError, match="in all"):
        complete(stand, upload, parts=(WantedPart(number=1),), size=4)
    wanted = (
        WantedPart(number=1, etag=md5(b"one")),
        WantedPart(number=9, sha256=hashlib.sha256(b"nine").hexdigest()),
    )
    upload = complete(stand, upload, parts=wanted)
    assert [part.number for part in parts(stand, upload)] == [1, 9]
    assert complete(stand, upload, parts=wanted).task_id == upload.task_id
    assert complete(stand, upload).task_id == upload.task_id
    with pytest.raises(ConflictError) as refused:
        complete(stand, upload, size=7)
    assert refused.value.code == "complete_mismatch"
    assert stand.work(upload.task_id) == "completed"
    assert stand.work_all("upload") == ["completed"]
    assert complete(stand, upload, parts=wanted).state == SessionState.DONE
    assert stand.stored_bytes(version_of(stand, upload).id) == b"onenine"


def test_other_content_than_declared_fails_and_says_so(stand: Stand) -> None:
    upload = frozen(stand, stand.bucket(), "a", PARTS, sha256="0" * 64)
    assert stand.work(upload.task_id) == "failed"
    state, result = outcome(stand, upload)
    assert (state, result["code"]) == ("failed", "sha256_mismatch")
    assert hashlib.sha256(WHOLE).hexdigest() in result["detail"]
    assert complete(stand, upload).state == SessionState.FAILED
    # The same parts would fail again: the next passes free them, and later the result.
    assert len(files(stand)) == len(PARTS)
    passes(sweeper(stand))
    assert files(stand) == set()
    assert outcome(stand, upload) == (state, result)
    with pytest.raises(ConflictError):
        retry(stand.bench.context, upload.task_id or 0, by="test")
    backdate(stand, upload)
    passes(sweeper(stand))
    assert row(stand, upload) is None


def test_condition_is_judged_when_it_is_completed(stand: Stand) -> None:
    bucket = stand.bucket()
    new_only = Conditions(if_none_match=(ANY,))
    upload = begin(stand, bucket, "a", conditions=new_only)
    send(stand, upload, 1, b"hello")
    stand.put(bucket, "a", b"somebody was faster")
    with pytest.raises(PreconditionError):
        complete(stand, upload)
    # It stays open, and the generation that it did not take is the next one's.
    found = row(stand, upload)
    assert found is not None
    assert (found.state, found.task_id) == (SessionState.OPEN, None)
    assert stand.object(bucket, "a").generation == 1
    stand.remove(bucket, "a")
    assert stand.work(complete(stand, upload).task_id) == "completed"
    assert version_of(stand, upload).generation == 3


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_uploads_that_want_a_new_key_one_gets_it(stand: Stand, first: int) -> None:
    """Both were completed while there was nothing; whichever is joined first."""
    bucket = stand.bucket()
    new_only = Conditions(if_none_match=(ANY,))
    both = [
        frozen(stand, bucket, "a", PARTS, operation_id=name, conditions=new_only)
        for name in ("one", "two")
    ]
    states = {
        upload.operation_id: stand.work(upload.task_id) for upload in (both[first], both[1 - first])
    }
    if first == 0:
        assert states == {"one": "completed", "two": "failed"}
        assert outcome(stand, both[1])[1]["code"] == "precondition_failed"
    else:
        assert states == {"two": "completed", "one": "cancelled"}
        assert outcome(stand, both[0])[1]["code"] == "superseded"
    stand.work_all("upload")
    assert stand.stored_bytes(version_of(stand, both[first]).id) == WHOLE


def test_put_after_complete_wins(stand: Stand) -> None:
    """However long the parts take to be joined: the order is that of the requests."""
    bucket = stand.bucket()
    upload = frozen(stand, bucket, "a", PARTS)
    later = stand.put(bucket, "a", b"later")
    assert later.generation == 2
    assert stand.work(upload.task_id) == "cancelled"
    assert outcome(stand, upload)[1]["code"] == "superseded"
    assert complete(stand, upload).state == SessionState.FAILED
    assert stand.version(later.version_id).state == "pending"
    stand.work_all("upload")
    assert stand.object(bucket, "a").current_version_id == later.version_id
    with pytest.raises(ConflictError):
        retry(stand.bench.context, upload.task_id or 0, by="test")
    passes(sweeper(stand), 2)
    assert files(stand) == set()
    assert breaches(stand) == []


def test_put_after_complete_wins_although_it_is_gone_again(stand: Stand) -> None:
    """What a later write has overwritten does not come back when that one expires."""
    bucket = stand.bucket()
    upload = frozen(stand, bucket, "a", PARTS)
    later = stand.put(bucket, "a", b"later")
    stand.work(later.task_id)

    def expire(session: Session) -> None:
        locked = lock_key(session, bucket, "a", create=False)
        assert locked is not None
        end_living(session, stand.catalogue, locked, newest_version_id=later.version_id)

    stand.db.run_session(expire)
    assert stand.work(upload.task_id) == "cancelled"
    assert stand.object(bucket, "a").served_version_id is None


def test_delete_after_complete_wins(stand: Stand) -> None:
    bucket = stand.bucket()
    older = stand.put(bucket, "a", b"older")
    stand.work(older.task_id)
    upload = frozen(stand, bucket, "a", PARTS)
    stand.remove(bucket, "a")
    assert stand.state(upload.task_id) == "cancelled"
    assert outcome(stand, upload)[1] == {
        "code": "superseded",
        "detail": "the key was deleted after the upload was completed",
    }
    assert stand.object(bucket, "a").served_version_id is None
    passes(sweeper(stand), 2)
    assert files(stand) == set()
    # And what comes after the DELETE is not held up by it.
    upload = frozen(stand, bucket, "a", PARTS, operation_id="again")
    assert stand.work(upload.task_id) == "completed"
    stand.work_all("delete")
    assert breaches(stand) == []


def test_delete_stops_the_joining_of_a_key_that_was_never_there(stand: Stand, other: Stand) -> None:
    bucket = stand.bucket()
    upload = frozen(stand, bucket, "a", PARTS)
    execution = other.claim(upload.task_id)
    stand.remove(bucket, "a")
    assert other.run(execution) == "cancelled"
    assert outcome(stand, upload)[1]["code"] == "superseded"
    assert stand.object(bucket, "a").served_version_id is None
    passes(sweeper(stand), 2)
    assert files(stand) == set()
    assert breaches(stand) == []


def test_failed_upload_does_not_come_back_after_a_delete(stand: Stand) -> None:
    bucket = stand.bucket()
    upload = frozen(stand, bucket, "a", PARTS)
    task_id = upload.task_id or 0
    cancel(stand.bench.context, stand.bench.enqueuer, task_id, by="test", tenant_id=TENANT)
    stand.remove(bucket, "a")
    with pytest.raises(ConflictError):
        retry(stand.bench.context, task_id, by="test")
    assert outcome(stand, upload)[1]["code"] == "cancelled"


def test_deletion_by_prefix_stops_the_joining(stand: Stand, other: Stand) -> None:
    """What was completed before it does not appear after it; what is completed later does."""
    bucket = stand.bucket()
    before = {key: frozen(stand, bucket, key, PARTS) for key in ("a/1", "a/2", "b")}
    failed = frozen(stand, bucket, "a/3", PARTS)
    cancel(stand.bench.context, stand.bench.enqueuer, failed.task_id or 0, by="test")
    claimed = other.claim(before["a/2"].task_id)
    made = stand.db.run_session(
        lambda session: start_removal(
            session, stand.catalogue, session.get_one(Bucket, bucket), prefix="a/"
        )
    )
    later = frozen(stand, bucket, "a/1", PARTS, operation_id="later")
    assert stand.state(before["a/1"].task_id) == "cancelled"
    assert other.run(claimed) == "cancelled"
    with pytest.raises(ConflictError):
        retry(stand.bench.context, failed.task_id or 0, by="test")
    assert [stand.work(one.task_id) for one in (before["b"], made, later)] == ["completed"] * 3
    stand.work_all("upload")
    assert outcome(stand, before["a/1"])[1]["code"] == "superseded"
    assert stand.object(bucket, "a/1").current_version_id == version_of(stand, later).id
    assert stand.object(bucket, "b").current_version_id == version_of(stand, before["b"]).id
    assert stand.object(bucket, "a/2").served_version_id is None
    passes(sweeper(stand), 2)
    assert files(stand) == set()
    assert breaches(stand) == []


def test_version_in_review_that_is_newer_does_not_count(stand: Stand) -> None:
    bucket = stand.bucket()
    upload = frozen(stand, bucket, "a.txt", PARTS)
    stand.bucket(reject_keywords=["forbidden"])
    newer = stand.put(bucket, "a.txt", b"this is forbidden")
    stand.bucket()
    assert stand.work(upload.task_id) == "completed"
    assert version_of(stand, upload).generation == 1
    stand.work_all("upload")
    stand.work_all("review")
    assert stand.version(newer.version_id).state == "blocked"
    assert stand.object(bucket, "a.txt").current_version_id == version_of(stand, upload).id
    assert stand.object(bucket, "a.txt").generation == 2
    assert breaches(stand) == []


def test_no_origin_is_asked_for_what_is_being_uploaded(stand: Stand) -> None:
    bucket = stand.bucket()
    upload = frozen(stand, bucket, "a", PARTS)

    def arriving(session: Session) -> bool:
        return is_arriving(session, session.get_one(Bucket, bucket), "a")

    assert stand.look(arriving)
    stand.work(upload.task_id)
    assert not stand.look(arriving)


@pytest.mark.databases("mariadb")
def test_no_restore_overlooks_an_upload_that_is_joined_while_it_looks(
    stand: Stand, other: Stand
) -> None:
    bucket = stand.bucket(reject_keywords=["forbidden"])
    upload = frozen(stand, bucket, "a", PARTS)
    entry = Entry(
        key="a", version=1, generation=1, blob=1, sha256="0" * 64, size=1, etag="e",
        content_type="text/plain", metadata={}, modified_at=utc_now().isoformat(), content=1,
        target_key="t",
    )  # fmt: skip
    execution = other.claim(upload.task_id)
    joined: list[str] = []

    def look(session: Session) -> str:
        @sa.event.listens_for(session.connection(), "before_cursor_execute")
        def join(*args: object) -> None:
            if "FROM upload_sessions" in str(args[2]) and not joined:
                joined.append(str(other.run(execution)))

        return decide(session, bucket, entry, "never").outcome

    assert stand.look(look) == "kept"
    assert joined == ["completed"]
    assert version_of(stand, upload).state == "reviewing"


def test_overwrite_supersedes_older_unfinished_work(stand: Stand) -> None:
    bucket = stand.bucket()
    older = stand.put(bucket, "a", b"older")
    upload = frozen(stand, bucket, "a", PARTS)
    assert stand.work(upload.task_id) == "completed"
    assert stand.version(older.version_id).state == "superseded"
    assert stand.state(older.task_id) == "cancelled"
    assert stand.work_all("upload") == ["completed"]
    assert stand.object(bucket, "a").current_version_id == version_of(stand, upload).id


def test_content_that_is_stored_already_is_attached_to(stand: Stand) -> None:
    bucket = stand.bucket()
    stand.work(stand.put(bucket, "first", WHOLE).task_id)
    upload = frozen(stand, bucket, "a", PARTS)
    assert stand.work(upload.task_id) == "completed"
    _, result = outcome(stand, upload)
    assert (result["state"], result["task_id"]) == ("stored", None)
    assert files(stand) == set()
    assert len(stand.channels.keys("a")) == 1


def test_reviewed_bucket_reviews_the_whole(stand: Stand) -> None:
    bucket = stand.bucket(reject_keywords=["forbidden"])
    upload = frozen(stand, bucket, "a.txt", [b"this is forb", b"idden"])
    assert stand.work(upload.task_id) == "completed"
    assert outcome(stand, upload)[1]["state"] == "reviewing"
    stand.work_all("review")
    assert version_of(stand, upload).state == "blocked"


def test_operation_id_is_of_one_upload(stand: Stand) -> None:
    bucket = stand.bucket()
    upload = begin(stand, bucket, "a", operation_id="op")
    assert begin(stand, bucket, "a", operation_id="op").public_id == upload.public_id
    with pytest.raises(ConflictError) as refused:
        begin(stand, bucket, "b", operation_id="op")
    assert refused.value.code == "operation_mismatch"
