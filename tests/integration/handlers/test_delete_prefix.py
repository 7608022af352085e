"""Deletion by prefix: what it takes, what it leaves, and going on after a stop in the middle."""

from __future__ import annotations

import pytest

from shared.catalog.buckets import delete_bucket
from shared.catalog.holds import place_hold
from shared.catalog.models import Bucket, Removal
from shared.catalog.removals import start_removal
from shared.core.clock import utc_now
from shared.core.failpoints import arm
from shared.outbox.cancel import cancel
from shared.outbox.manual import retry
from tests.integration.handlers.sweeping import passes, sweeper
from tests.integration.handlers.test_crashes import check_all
from tests.support.handlers import TENANT, Stand


@pytest.fixture
def bucket(stand: Stand) -> int:
    return stand.bucket()


def store(stand: Stand, bucket: int, *keys: str) -> None:
    for key in keys:
        put = stand.put(bucket, key, key.encode())
        if not put.instant:
            assert stand.work(put.task_id) == "completed"


def start(stand: Stand, bucket: int, prefix: str, *, is_dry_run: bool = False) -> Removal:
    return stand.db.run_session(
        lambda session: start_removal(
            session,
            stand.catalogue,
            session.get_one(Bucket, bucket),
            prefix=prefix,
            is_dry_run=is_dry_run,
        )
    )


def removal(stand: Stand, removal_id: int) -> Removal:
    return stand.look(lambda session: session.get_one(Removal, removal_id))


def counts(row: Removal) -> tuple[int, int, int]:
    return row.deleted_keys, row.newer_keys, row.held_keys


def served(stand: Stand, bucket: int, *keys: str) -> list[str]:
    return [key for key in keys if stand.object(bucket, key).served_version_id is not None]


def test_keys_with_the_prefix_go_and_no_other(stand: Stand, bucket: int) -> None:
    inside = [f"a/{n}" for n in range(8)]
    outside = ["a", "a0", "b/1"]
    store(stand, bucket, *inside, *outside)
    made = start(stand, bucket, "a/")
    assert stand.work(made.task_id) == "completed"
    row = removal(stand, made.id)
    assert (row.state, counts(row), row.deleted_bytes) == ("completed", (8, 0, 0), 24)
    assert stand.task(made.task_id)["result"]["deleted_keys"] == 8
    assert "progress" in stand.event_types(made.task_id)
    assert served(stand, bucket, *inside, *outside) == outside
    check_all(stand)
    assert len(stand.channels.keys("a")) == 3


def test_empty_prefix_is_the_whole_bucket_and_no_other_bucket(stand: Stand, bucket: int) -> None:
    other = stand.bucket("other")
    store(stand, bucket, "x", "\N{GRINNING FACE}")
    store(stand, other, "x")
    made = start(stand, bucket, "")
    assert stand.work(made.task_id) == "completed"
    assert counts(removal(stand, made.id)) == (2, 0, 0)
    assert served(stand, other, "x") == ["x"]
    check_all(stand)


def test_what_is_put_after_the_request_survives(stand: Stand, bucket: int) -> None:
    store(stand, bucket, "a/1", "a/2")
    made = start(stand, bucket, "a/")
    late = stand.put(bucket, "a/2", b"late")
    store(stand, bucket, "a/3")
    assert stand.work(made.task_id) == "completed"
    assert counts(removal(stand, made.id)) == (1, 2, 0)
    assert served(stand, bucket, "a/1", "a/2", "a/3") == ["a/2", "a/3"]
    assert stand.work(late.task_id) == "completed"
    assert stand.stored_bytes(late.version_id) == b"late"
    check_all(stand)


def test_unfinished_work_ends_with_its_key(stand: Stand) -> None:
    bucket = stand.bucket(reject_keywords=["forbidden"])
    put = stand.put(bucket, "a/1", b"in review")
    made = start(stand, bucket, "a/")
    late = stand.put(bucket, "a/1", b"later, in review as well")
    assert stand.work(made.task_id) == "completed"
    assert stand.version(put.version_id).state == "deleted"
    assert stand.state(put.task_id) == "cancelled"
    assert stand.version(late.version_id).state == "reviewing"
    staging_key = stand.version(late.version_id).staging_key
    assert staging_key is not None
    assert stand.is_staged(staging_key)
    assert stand.work(late.task_id) == "completed"


def test_held_keys_stay(stand: Stand, bucket: int) -> None:
    store(stand, bucket, "a/1", "a/2")
    stand.db.run_session(lambda session: place_hold(session, bucket, "a/2", reason="r"))
    made = start(stand, bucket, "a/")
    assert stand.work(made.task_id) == "completed"
    assert counts(removal(stand, made.id)) == (1, 0, 1)
    assert served(stand, bucket, "a/1", "a/2") == ["a/2"]


def test_dry_run_counts_and_changes_nothing(stand: Stand, bucket: int) -> None:
    keys = [f"a/{n}" for n in range(7)]
    store(stand, bucket, *keys)
    made = start(stand, bucket, "a/", is_dry_run=True)
    assert stand.work(made.task_id) == "completed"
    row = removal(stand, made.id)
    assert (counts(row), row.deleted_bytes) == ((7, 0, 0), 21)
    assert served(stand, bucket, *keys) == keys
    assert stand.waiting("delete") == []


def test_failure_and_cancel_leave_whole_keys(stand: Stand, other: Stand, bucket: int) -> None:
    keys = [f"a/{n}" for n in range(9)]
    store(stand, bucket, *keys)
    made = start(stand, bucket, "a/")
    arm("prefix.after_page=raise")
    try:
        assert stand.work(made.task_id) == "scheduled"
    finally:
        arm("")
    row = removal(stand, made.id)
    assert (row.state, counts(row), row.cursor) == ("running", (3, 0, 0), "a/2")
    assert served(stand, bucket, *keys) == keys[3:]

    context = other.bench.context
    cancel(context, other.bench.enqueuer, made.task_id, by="operator")
    assert stand.state(made.task_id) == "cancelled"
    row = removal(stand, made.id)
    assert (row.state, row.error_code) == ("cancelled", "cancelled")
    assert row.ended_at is not None
    assert served(stand, bucket, *keys) == keys[3:]

    # Run again, it goes on behind the last key; what was put meanwhile stays.
    store(stand, bucket, "a/0", "a/8")
    retry(context, made.task_id, by="operator")
    assert removal(stand, made.id).state == "running"
    assert other.work(made.task_id) == "completed"
    row = removal(stand, made.id)
    assert (row.state, counts(row)) == ("completed", (8, 1, 0))
    assert served(stand, bucket, *keys) == ["a/0", "a/8"]
    check_all(stand)


def test_cancel_while_it_runs_stops_before_the_next_page(stand: Stand, bucket: int) -> None:
    store(stand, bucket, "a/1", "a/2")
    made = start(stand, bucket, "a/")
    execution = stand.claim(made.task_id)
    cancel(stand.bench.context, stand.bench.enqueuer, made.task_id, by="operator")
    assert stand.run(execution) == "cancelled"
    assert removal(stand, made.id).state == "cancelled"
    assert served(stand, bucket, "a/1", "a/2") == ["a/1", "a/2"]


def test_bucket_that_is_gone_leaves_nothing_to_do(stand: Stand, bucket: int) -> None:
    store(stand, bucket, "a/1")
    made = start(stand, bucket, "a/")
    stand.remove(bucket, "a/1")
    stand.db.run_session(lambda session: delete_bucket(session, TENANT, "photos"))
    assert stand.work(made.task_id) == "completed"
    assert counts(removal(stand, made.id)) == (0, 0, 0)


def test_end_that_nobody_heard_of_is_found(stand: Stand, bucket: int) -> None:
    """A process that did not know the kind ended the task; the sweep makes the settle task."""
    store(stand, bucket, "a/1")
    made = start(stand, bucket, "a/")
    stand.bench.set(made.task_id, state="cancelled", error_code="cancelled", finished_at=utc_now())
    passes(sweeper(stand), 2)
    (settle,) = stand.waiting("delete")
    assert stand.task(settle)["kind"] == "delete.settle"
    assert stand.work(settle) == "completed"
    assert removal(stand, made.id).state == "cancelled"


def test_thousands_of_names_of_what_was_deleted_are_walked_past(
    stand: Stand, bucket: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.catalog.removals.LOOK_ROWS", 4)
    keys = [f"a/{n:02d}" for n in range(11)]
    store(stand, bucket, *keys)
    assert stand.work(start(stand, bucket, "a/").task_id) == "completed"
    store(stand, bucket, "a/09", "a/10")
    made = start(stand, bucket, "a/")
    assert stand.work(made.task_id) == "completed"
    row = removal(stand, made.id)
    assert (counts(row), row.cursor) == ((2, 0, 0), "a/10")
