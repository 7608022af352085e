"""Sweeps over more than a page: what cannot be done holds up nothing behind it."""

from __future__ import annotations

import os
from hashlib import sha256

import pytest
import sqlalchemy as sa
from structlog.testing import capture_logs

from shared.catalog.idempotency import forget_expired
from shared.catalog.models import IdempotencyRecord, Review, Version, utc_now
from shared.core.clock import Deadline
from shared.storage.body import Body
from tests.integration.handlers.sweeping import DOWN, passes, states, sweeper
from tests.support.handlers import Stand

CONTENT = b"hello world"


def test_channel_that_is_away_holds_up_no_probe_of_another(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.catalog.sweeps.locations.PAGE_ROWS", 2)
    bucket = stand.bucket()
    for channel in ("a", "a", "a", "b"):
        if channel == "b":
            stand.channels.faulty["a"].fail_always(DOWN, "put")
        stand.work(stand.put(bucket, "k", os.urandom(20)).task_id)
        stand.channels.faulty["a"].heal()
        stand.remove(bucket, "k")
        stand.work_all("delete")
    passes(sweeper(stand, tombstone_seconds=3600.0), 2)
    assert set(states(stand)) == {"tombstone"}
    stand.channels.faulty["a"].fail_always(DOWN, "delete")
    report = passes(sweeper(stand, max_deletions=2))
    assert report.counts["locations"]["probes_failed"] == 1
    probed = {location.channel for location in stand.locations() if location.probed_at}
    assert probed == {"b"}


def test_probes_on_a_channel_that_is_gone_wait_and_hold_up_no_other(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.catalog.sweeps.locations.PAGE_ROWS", 2)
    for name, count in (("a", 3), ("b", 1)):
        bucket = stand.bucket(name * 3, channels=(name,))
        for number in range(count):
            stand.work(stand.put(bucket, f"{number}", os.urandom(20)).task_id)
            stand.remove(bucket, f"{number}")
    stand.work_all("delete")
    late = stand.locations()[0].key
    stand.channels.faulty["a"].inner.put(
        late, Body(CONTENT), sha256=sha256(CONTENT).hexdigest(), deadline=Deadline(10)
    )
    stand.channels.gone.add("a")
    sweeps = sweeper(stand, max_deletions=1)
    with capture_logs() as logs:
        report = passes(sweeps)
        passes(sweeps)
    assert report.counts["locations"]["probed"] == 1
    assert {one.channel for one in stand.locations() if one.probed_at} == {"b"}
    said = [one for one in logs if one["event"] == "probes_wait_for_channel"]
    assert [(one["channel"], one["sweep"]) for one in said] == [("a", "locations")]
    stand.channels.gone.clear()
    passes(sweeper(stand))
    assert all(one.probed_at for one in stand.locations())
    assert stand.channels.keys("a") == []


def test_more_than_a_page_is_swept_up_to_the_cap(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.catalog.sweeps.locations.PAGE_ROWS", 2)
    bucket = stand.bucket()
    for number in range(7):
        put = stand.put(bucket, f"{number}.txt", os.urandom(20))
        stand.channels.faulty["a"].fail_next("head", DOWN)
        stand.work(put.task_id)
        # An answer in between: so many failures in a row would open the channel's breaker.
        found = stand.channels.find("a")
        assert found is not None
        assert found[0].channel.head("not-there", deadline=Deadline(5.0)) is None
    sweeps = sweeper(stand, max_deletions=6, tombstone_seconds=3600.0)
    passes(sweeps)
    assert states(stand).count("condemned") == 7
    passes(sweeps)
    assert states(stand).count("tombstone") == 6
    assert passes(sweeper(stand, max_deletions=100)).counts["locations"]["probed"] == 7


def test_every_overdue_review_is_decided_though_the_first_cannot_be(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.catalog.sweeps.reviews.PAGE_ROWS", 1)
    bucket = stand.bucket(doubtful_keywords=["hello"])
    puts = [stand.put(bucket, f"{number}.txt", CONTENT) for number in range(3)]
    for put in puts:
        stand.work(put.task_id)
    with stand.db.engine.begin() as connection:
        connection.execute(sa.update(Review).values(deadline_at=Review.created_at))
        broken = sa.update(Version).where(Version.id == puts[0].version_id)
        connection.execute(broken.values(state="blocked"))
    assert passes(sweeper(stand)).counts["reviews"]["overdue"] == 3
    found = [stand.review_of(put.version_id).state for put in puts]
    assert found == ["doubtful", "rejected", "rejected"]


def test_all_expired_answers_are_forgotten(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.catalog.sweeps.answers.FORGET_ROWS", 2)
    monkeypatch.setattr(
        "shared.catalog.sweeps.answers.forget_expired",
        lambda session: forget_expired(session, limit=2),
    )
    with stand.db.engine.begin() as connection:
        for number in range(5):
            connection.execute(
                sa.insert(IdempotencyRecord).values(
                    tenant_id="acme",
                    idempotency_key=f"key-{number}",
                    fingerprint="0" * 64,
                    status=200,
                    created_at=utc_now(),
                    expires_at=utc_now(60 if number == 4 else -60),
                )
            )
    assert passes(sweeper(stand)).counts["answers"]["forgotten"] == 4
    left = stand.look(lambda session: session.scalars(sa.select(IdempotencyRecord)).all())
    assert [row.idempotency_key for row in left] == ["key-4"]
