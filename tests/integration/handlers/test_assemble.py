"""Joining the parts of resumable uploads: the version, the result, and every way not to get one."""

from __future__ import annotations

import hashlib
import os

import pytest

from shared.catalog.conditions import ANY, Conditions
from shared.catalog.models import SessionState
from shared.catalog.uploading.rules import WantedPart, multipart_etag
from shared.core.errors import ConflictError, InvalidError
from shared.outbox.manual import retry
from tests.integration.handlers.sweeping import passes, sweeper
from tests.support.handlers import Stand
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


def test_condition_is_judged_when_the_version_is_made(stand: Stand) -> None:
    bucket = stand.bucket()
    new_only = Conditions(if_none_match=(ANY,))
    upload = frozen(stand, bucket, "a", PARTS, conditions=new_only)
    stand.put(bucket, "a", b"somebody was faster")
    assert stand.work(upload.task_id) == "failed"
    assert outcome(stand, upload)[1]["code"] == "precondition_failed"
    stand.remove(bucket, "a")
    retry(stand.bench.context, upload.task_id or 0, by="test")
    assert stand.work(upload.task_id) == "completed"


def test_overwrite_supersedes_older_unfinished_work(stand: Stand) -> None:
    bucket = stand.bucket()
    upload = frozen(stand, bucket, "a", PARTS)
    older = stand.put(bucket, "a", b"older")
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
