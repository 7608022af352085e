"""Expiry: what is due goes, what is held, newer, changed or not copied stays; rules reach all."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from services.scheduler.expiry import ObjectExpiry
from shared.catalog.accounts import ensure_tenant
from shared.catalog.buckets import BucketSpec, put_bucket
from shared.catalog.channels import ChannelInput, put_channel
from shared.catalog.conditions import Conditions
from shared.catalog.copies import CopyOrder, copy_object
from shared.catalog.expiries import Due, expire, find_due, own_times, set_expiry
from shared.catalog.holds import place_hold
from shared.catalog.lifecycle import ExpiryRule, Lifecycle, Lifetime
from shared.catalog.models import Expiry, LifecycleWalk, ObjectRow, Version, utc_now
from shared.catalog.puts import PutAnswer, commit_put
from shared.catalog.review_policy import ReviewPolicy
from shared.core.clock import Deadline
from shared.core.errors import InvalidError, NotFoundError, PreconditionError, SwitchedOffError
from shared.storage.file import FileChannel
from shared.storage.staging import Staging
from tests.support.catalogue import TENANT, World, staged, together

HOUR = 3600.0


@pytest.fixture
def job(world: World, tmp_path: Path) -> ObjectExpiry:
    """The job of one scheduler."""
    staging = Staging(FileChannel(tmp_path / "staging", name="staging"))
    staging.prepare(deadline=Deadline(10))
    return ObjectExpiry(db=world.db, catalogue=world.catalogue, staging=staging)


def run(job: ObjectExpiry) -> Counter[str]:
    return job.run_once(deadline=Deadline(60), check=lambda: None)


def put(world: World, bucket: int, key: str, seconds: float | None = HOUR) -> PutAnswer:
    """Store an object that expires."""
    body = replace(staged(key.encode()), lifetime=Lifetime(seconds=seconds))
    answer = world.run(lambda session: commit_put(session, world.catalogue, bucket, key, body))
    assert answer.instant or world.store(answer.version_id)
    return answer


def pass_time(world: World, seconds: float = 2 * HOUR) -> None:
    """Let all that was written be so much older."""

    def older(session: Session) -> None:
        gone = dt.timedelta(seconds=seconds)
        for version in session.scalars(sa.select(Version)):
            version.created_at -= gone
        for row in session.scalars(sa.select(ObjectRow)):
            row.modified_at = None if row.modified_at is None else row.modified_at - gone
        for expiry in session.scalars(sa.select(Expiry)):
            expiry.due_at -= gone
            expiry.own_at = None if expiry.own_at is None else expiry.own_at - gone

    world.run(older)


def rules(world: World, *given: ExpiryRule, name: str = "photos", **spec: Any) -> int:
    world.run(lambda session: ensure_channels(world, session))
    lifecycle = Lifecycle(rules=list(given)) if given else None
    bucket_spec = BucketSpec(channels=["a", "b"], lifecycle=lifecycle, **spec)
    return world.run(lambda session: put_bucket(session, TENANT, name, bucket_spec).bucket.id)


def ensure_channels(world: World, session: Session) -> None:
    ensure_tenant(session, TENANT)
    for name in ("a", "b"):
        channel = ChannelInput(name=name, kind="file", settings={"root": f"/{name}"})
        put_channel(session, channel, secrets=world.secrets)


def there(world: World, bucket: int, *keys: str) -> list[str]:
    found = []
    for key in keys:
        try:
            world.read(bucket, key)
        except NotFoundError:
            continue
        found.append(key)
    return found


def test_what_is_due_goes_and_its_bytes_too(world: World, bucket: int, job: ObjectExpiry) -> None:
    put(world, bucket, "soon")
    put(world, bucket, "later", 5 * HOUR)
    put(world, bucket, "never", None)
    assert world.read(bucket, "soon").expires_at is not None
    assert world.read(bucket, "never").expires_at is None
    assert run(job)["looked_at"] == 0
    pass_time(world)
    assert run(job)["deleted"] == 1
    assert there(world, bucket, "soon", "later", "never") == ["later", "never"]
    assert len(world.open_tasks("delete.blob")) == 1
    assert len(world.all(Expiry)) == 1
    world.check()


def test_overwrite_saves_a_key(world: World, bucket: int, job: ObjectExpiry) -> None:
    put(world, bucket, "k")
    pass_time(world)
    world.put_stored(bucket, "k", b"newer")
    assert run(job)["gone"] == 1
    assert there(world, bucket, "k") == ["k"]
    assert world.all(Expiry) == []
    world.check()


def test_only_the_expiry_that_was_scanned_counts(world: World, bucket: int) -> None:
    put(world, bucket, "k")
    pass_time(world)
    (seen,) = world.run(lambda session: find_due(session, None, limit=9))
    world.run(
        lambda session: set_expiry(
            session, world.catalogue, bucket, "k", lifetime=Lifetime(seconds=HOUR)
        )
    )
    assert world.run(lambda session: expire(session, world.catalogue, seen)).outcome == "changed"
    assert there(world, bucket, "k") == ["k"]


def test_held_keys_stay_and_hold_up_nothing(world: World, bucket: int, job: ObjectExpiry) -> None:
    for key in ("a", "b", "c"):
        put(world, bucket, key)
    for key in ("a", "b"):
        world.run(lambda session, key=key: place_hold(session, bucket, key, reason="r"))
    pass_time(world)
    job.max_objects = 1
    outcomes = [run(job) for _ in range(3)]
    assert [counts["held"] for counts in outcomes] == [1, 1, 0]
    assert there(world, bucket, "a", "b", "c") == ["a", "b"]


def test_unreplicated_content_stays(world: World, job: ObjectExpiry) -> None:
    bucket = world.bucket()

    def ask(session: Session) -> None:
        session.execute(sa.text("UPDATE buckets SET replica_channels = '[\"b\"]'"))

    put(world, bucket, "k")
    world.run(ask)
    pass_time(world)
    assert run(job)["unreplicated"] == 1
    off = ObjectExpiry(
        db=job.db,
        catalogue=replace(world.catalogue, switched_off=frozenset({"replica"})),
        staging=job.staging,
    )
    assert run(off)["deleted"] == 1


def test_pending_upload_that_is_due_ends(world: World, bucket: int, job: ObjectExpiry) -> None:
    body = replace(staged(b"slow"), lifetime=Lifetime(seconds=HOUR))
    answer = world.run(lambda session: commit_put(session, world.catalogue, bucket, "k", body))
    pass_time(world)
    assert run(job)["deleted"] == 1
    assert world.get(Version, answer.version_id).state == "deleted"
    assert world.task(answer.task_id).state == "cancelled"
    world.check()


def test_what_is_in_review_waits(world: World, job: ObjectExpiry) -> None:
    bucket = world.bucket("reviewed", policy=ReviewPolicy())
    body = replace(staged(b"x"), lifetime=Lifetime(seconds=HOUR))
    world.run(lambda session: commit_put(session, world.catalogue, bucket, "k", body))
    pass_time(world)
    assert run(job)["waiting"] == 1


def test_what_is_in_quarantine_waits_as_long_as_it_may_be_released(
    world: World, job: ObjectExpiry
) -> None:
    bucket = rules(world, ExpiryRule(after_days=1), review_policy=ReviewPolicy())
    blocked = world.put(bucket, "k")

    def block(session: Session) -> None:
        version = session.get_one(Version, blocked.version_id)
        version.state, version.staging_until = "blocked", utc_now(HOUR)

    world.run(block)
    pass_time(world, 25 * HOUR)
    assert run(job)["waiting"] == 1
    assert len(world.all(Expiry)) == 1
    world.run(lambda session: session.execute(sa.update(Version).values(staging_until=utc_now(-1))))
    run(job)
    assert world.all(Expiry) == []


def test_rules_count_for_new_and_for_old_objects(world: World, job: ObjectExpiry) -> None:
    bucket = rules(world)
    old = [f"logs/{number:03d}" for number in range(7)]
    for key in [*old, "keep"]:
        put(world, bucket, key, None)
    rules(world, ExpiryRule(prefix="logs/", after_seconds=HOUR))
    put(world, bucket, "logs/new", None)
    assert world.read(bucket, "logs/new").expires_at is not None
    # Readers see it at once, the job after its walk.
    assert world.read(bucket, old[0]).expires_at is not None
    assert len(world.all(Expiry)) == 1
    assert run(job)["pages_told"] == 1
    assert len(world.all(Expiry)) == 8
    assert world.all(LifecycleWalk) == []
    pass_time(world)
    assert run(job)["deleted"] == 8
    assert there(world, bucket, *old, "logs/new", "keep") == ["keep"]


def test_walk_goes_on_where_it_was(
    world: World, job: ObjectExpiry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.catalog.lifecycle_walks.PAGE_ROWS", 2)
    bucket = rules(world)
    for number in range(5):
        put(world, bucket, f"k{number}", None)
    rules(world, ExpiryRule(after_seconds=HOUR))
    other = ObjectExpiry(db=job.db, catalogue=job.catalogue, staging=job.staging)
    together(lambda: run(job), lambda: run(other))
    assert world.all(LifecycleWalk) == []
    assert len(world.all(Expiry)) == 5
    # Rules that are taken away: nothing expires any more, and the rows go.
    rules(world)
    pass_time(world)
    assert run(job)["deleted"] == 0
    assert world.all(Expiry) == []


def test_rule_that_was_taken_away_deletes_nothing_more(world: World, job: ObjectExpiry) -> None:
    """Even before the walk: the rules are read anew under the key's lock."""
    bucket = rules(world, ExpiryRule(after_seconds=HOUR))
    put(world, bucket, "k", None)
    pass_time(world)
    rules(world)
    with world.engine.begin() as connection:
        connection.execute(sa.delete(LifecycleWalk))
    assert run(job)["changed"] == 1
    assert there(world, bucket, "k") == ["k"]


def test_own_time_and_rule_the_earlier_counts(world: World, job: ObjectExpiry) -> None:
    bucket = rules(world, ExpiryRule(after_seconds=HOUR))
    put(world, bucket, "k", 10 * HOUR)
    put(world, bucket, "j", 60.0)
    assert world.read(bucket, "j").expires_at < world.read(bucket, "k").expires_at  # type: ignore[operator]
    pass_time(world)
    assert run(job)["deleted"] == 2


def test_changing_and_taking_away(world: World, bucket: int) -> None:
    answer = put(world, bucket, "k")

    def change(lifetime: Lifetime, **options: Any) -> dt.datetime | None:
        return world.run(
            lambda session: set_expiry(
                session, world.catalogue, bucket, "k", lifetime=lifetime, **options
            )
        )

    assert change(Lifetime()) is None
    assert world.all(Expiry) == []
    assert change(Lifetime(seconds=60)) is not None
    for wrong in (Lifetime(at=dt.datetime(2020, 1, 1)), Lifetime(seconds=-1)):
        with pytest.raises(InvalidError):
            change(wrong)

    with pytest.raises(PreconditionError):
        change(Lifetime(), conditions=Conditions(if_match=("other",)))
    assert world.read(bucket, "k").version_id == answer.version_id
    world.catalogue = replace(world.catalogue, switched_off=frozenset({"delete"}))
    with pytest.raises(SwitchedOffError):
        change(Lifetime(seconds=60))


def test_time_goes_along_with_a_move_not_with_a_copy(world: World, bucket: int) -> None:
    put(world, bucket, "k")

    def copy(source: str, target: str, **options: Any) -> int:
        order = CopyOrder(
            source_bucket_id=bucket,
            source_key=source,
            target_bucket_id=bucket,
            target_key=target,
            **options,
        )
        answer = world.run(lambda session: copy_object(session, world.catalogue, order))
        assert isinstance(answer, PutAnswer)
        return answer.version_id

    copied = copy("k", "copied")
    timed = copy("k", "timed", lifetime=Lifetime(seconds=60))
    pass_time(world)
    # Its time is over, but nobody has been there yet: it goes under the new name.
    moved = copy("k", "moved", is_move=True)
    found = world.run(lambda session: own_times(session, [copied, timed, moved]))
    assert set(found) == {timed, moved}


def test_two_schedulers_delete_once(world: World, bucket: int, job: ObjectExpiry) -> None:
    for number in range(6):
        put(world, bucket, f"k{number}")
    pass_time(world)
    other = ObjectExpiry(db=job.db, catalogue=job.catalogue, staging=job.staging)
    one, two = together(lambda: run(job), lambda: run(other))
    assert one["deleted"] + two["deleted"] == 6
    assert world.all(Expiry) == []
    world.check()


def test_deployment_without_deletions_lets_everything_be(
    world: World, bucket: int, job: ObjectExpiry
) -> None:
    put(world, bucket, "k")
    pass_time(world)
    off = replace(world.catalogue, switched_off=frozenset({"delete"}))
    assert not run(ObjectExpiry(db=job.db, catalogue=off, staging=job.staging))
    spec = BucketSpec(channels=["a"], lifecycle=Lifecycle(rules=[ExpiryRule(after_days=1)]))
    with pytest.raises(SwitchedOffError):
        world.run(lambda session: put_bucket(session, TENANT, "photos", spec, catalogue=off))


def test_due_pages_walk_the_index(world: World, bucket: int) -> None:
    for number in range(5):
        put(world, bucket, f"k{number}")
    pass_time(world)
    seen: list[Due] = []
    for _ in range(3):
        after = seen[-1] if seen else None
        seen += world.run(lambda session, after=after: find_due(session, after, limit=2))
    assert len(seen) == len(set(seen)) == 5
    assert seen == sorted(seen)
