"""The job: rules against locations, rules that came and went, and what the channels really have."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import Any

import pytest
import sqlalchemy as sa

from shared.catalog.models import Location, LocationAudit, utc_now
from shared.catalog.replicas.job import ReplicaJob
from shared.catalog.replicas.limits import ReplicaLimits
from shared.catalog.restores.losses import FoundBy, report_loss
from shared.core.clock import Deadline
from shared.storage.errors import ChannelUnavailable
from tests.integration.handlers.sweeping import passes, sweeper
from tests.support.handlers import Stand
from tests.support.replicas import Copies

DOWN = ChannelUnavailable("down")
CONTENT = b"hello world"


def turn(stand: Stand, **limits: Any) -> Counter[str]:
    """Take one turn of the job."""
    chosen = ReplicaLimits(
        **{"grace_seconds": 0.0, "retry_seconds": 0.0, "again_seconds": 0.0, **limits}
    )
    job = ReplicaJob(stand.db, stand.catalogue, stand.channels, chosen)
    return job.run_once(lambda: None)


def lose(copies: Copies, blob: int, channel: str) -> Location:
    """Remove a copy's bytes behind everybody's back."""
    location = copies.stored(blob, channel)
    copies.stand.channels.faulty[channel].inner.delete(location.key, deadline=Deadline(5))
    return location


@pytest.fixture
def copies(stand: Stand) -> Copies:
    return Copies(stand)


# -- rules ------------------------------------------------------------------------------------


def test_a_new_rule_brings_copies_of_what_is_there(stand: Stand) -> None:
    copies = Copies(stand, replicas=())
    blobs = [copies.store(f"k{number}", f"content {number}".encode()) for number in range(3)]
    copies.rules("b", "c")
    counts = turn(stand)
    assert (counts["planned"], counts["missing"], counts["compared"]) == (6, 6, 6)
    assert set(stand.work_all("replica")) == {"completed"}
    assert turn(stand)["planned"] == 0
    for blob in blobs:
        assert copies.places(blob) == {"a": ["stored"], "b": ["stored"], "c": ["stored"]}
    assert [rule.missing for rule in copies.rule_rows()] == [0, 0]


def test_a_walk_goes_on_where_the_last_turn_ended(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.catalog.replicas.walking.PAGE_ROWS", 2)
    copies = Copies(stand, replicas=())
    for number in range(5):
        copies.store(f"k{number}", f"content {number}".encode())
    copies.rules("b")
    assert turn(stand, versions=2)["planned"] == 2
    assert turn(stand, versions=2)["planned"] == 2
    assert turn(stand, versions=2)["planned"] == 1
    (rule,) = copies.rule_rows()
    assert (rule.cursor, rule.missing) == (0, 5)


def test_a_channel_with_a_backlog_gets_no_more_and_holds_up_no_other(stand: Stand) -> None:
    copies = Copies(stand, replicas=("b",))
    copies.store("x", CONTENT)
    other = stand.bucket("other", channels=["a"])
    stand.work(stand.put(other, "y", b"elsewhere").task_id)
    stand.bucket("other", channels=["a"], replicas=["b", "c"])
    counts = turn(stand, backlog=1)
    assert counts["rules_busy"] == 2
    assert counts["planned"] == 1
    assert [row.channel for row in copies.replicas()] == ["b", "c"]


def test_what_rows_say_counts_for_nothing(copies: Copies, stand: Stand) -> None:
    blob = copies.store("x", CONTENT)
    stand.work_all("replica")
    location = copies.stored(blob, "b")

    def condemn(session: Any) -> None:
        session.get_one(Location, location.id).state = "condemned"

    stand.db.run_session(condemn)
    assert copies.states() == ["completed"]
    assert turn(stand)["planned"] == 1
    assert stand.work_all("replica") == ["completed"]
    assert copies.content(blob, "b") == CONTENT


def test_copies_of_a_removed_rule_go_after_the_grace(copies: Copies, stand: Stand) -> None:
    blob = copies.store("x", CONTENT)
    stand.work_all("replica")
    copies.rules("c")
    assert turn(stand, grace_seconds=60.0)["removed"] == 0
    # While the other copy cannot be seen, none is given up.
    stand.channels.faulty["a"].fail_always(DOWN, "head")
    assert turn(stand)["kept"] == 1
    stand.channels.faulty["a"].heal()
    assert turn(stand)["removed"] == 1
    passes(sweeper(stand), 2)
    stand.work_all("replica")
    assert copies.places(blob) == {"a": ["stored"], "b": ["tombstone"], "c": ["stored"]}
    row = copies.replica(blob)
    assert (row.state, row.reason) == ("gone", "rule_removed")
    assert {(rule.channel, rule.state) for rule in copies.rule_rows()} == {
        ("b", "ended"),
        ("c", "active"),
    }
    # And back again.
    copies.rules("b", "c")
    turn(stand)
    assert stand.work_all("replica") == ["completed"]
    assert copies.content(blob, "b") == CONTENT


def test_a_removed_rules_copy_stays_while_the_other_is_reported_lost(
    copies: Copies, stand: Stand
) -> None:
    """Its channel says that something is there: perhaps not what should be."""
    blob = copies.store("x", CONTENT)
    stand.work_all("replica")
    location = copies.stored(blob, "a")
    stand.db.run_session(
        lambda session: report_loss(
            session, stand.catalogue, location_id=location.id, found_by=FoundBy.OPERATOR
        )
    )
    copies.rules()
    assert turn(stand)["kept"] == 1
    assert copies.places(blob) == {"a": ["stored"], "b": ["stored"]}


def test_a_removed_rules_copy_stays_where_another_bucket_wants_it(
    copies: Copies, stand: Stand
) -> None:
    blob = copies.store("x", CONTENT)
    stand.work_all("replica")
    other = stand.bucket("other", channels=["b"])
    stand.put(other, "y", CONTENT)
    copies.rules()
    counts = turn(stand)
    assert (counts["removed"], counts["let_go"], counts["rules_ended"]) == (0, 1, 1)
    assert copies.places(blob) == {"a": ["stored"], "b": ["stored"]}


# -- failures ---------------------------------------------------------------------------------


def test_failed_and_forgotten_replicas_are_planned_anew(copies: Copies, stand: Stand) -> None:
    copies.store("x", CONTENT)
    (task,) = stand.waiting("replica")
    stand.bench.set(task, max_attempts=1)
    stand.channels.faulty["b"].fail_next("put", DOWN)
    assert stand.work(task) == "failed"
    assert turn(stand, retry_seconds=60.0)["planned"] == 0
    assert turn(stand)["planned"] == 1
    (second,) = stand.waiting("replica")
    # Its end was never heard of.
    stand.bench.set(second, state="cancelled")
    assert turn(stand)["planned"] == 1
    assert stand.work_all("replica") == ["completed"]


# -- what is really there ---------------------------------------------------------------------


@pytest.mark.parametrize("channel", ["a", "b"])
def test_a_lost_copy_is_repaired_from_another(copies: Copies, stand: Stand, channel: str) -> None:
    blob = copies.store("x", CONTENT)
    stand.work_all("replica")
    lost = lose(copies, blob, channel)
    assert turn(stand)["suspects"] == 1
    # Two looks must be some time apart.
    assert turn(stand, again_seconds=60.0)["suspects"] == 1
    assert stand.waiting("replica") == []
    counts = turn(stand)
    assert counts["repair"] == 1
    (task,) = stand.waiting("replica")
    assert stand.task(task)["kind"] == "replica.repair"
    # Nothing is given up before the new copy is proven.
    assert copies.places(blob) == {"a": ["stored"], "b": ["stored"]}
    assert stand.work(task) == "completed"
    assert copies.content(blob, channel) == CONTENT
    assert copies.stored(blob, channel).id != lost.id
    passes(sweeper(stand), 2)
    assert sorted(copies.places(blob)[channel]) == ["stored", "tombstone"]
    assert turn(stand)["suspects"] == 0


def test_a_damaged_copy_is_found_and_repaired(copies: Copies, stand: Stand) -> None:
    blob = copies.store("x", CONTENT)
    stand.work_all("replica")
    location = copies.stored(blob, "b")
    root = stand.channels.root / "b"
    (path,) = [one for one in root.rglob(location.key.rpartition("/")[2]) if one.is_file()]
    path.write_bytes(CONTENT.replace(b"w", b"W"))
    assert turn(stand)["suspects"] == 1
    assert turn(stand)["repair"] == 1
    assert stand.work_all("replica") == ["completed"]
    assert copies.content(blob, "b") == CONTENT


def test_what_was_written_anew_and_is_right_stays(copies: Copies, stand: Stand) -> None:
    blob = copies.store("x", CONTENT)
    stand.work_all("replica")
    location = copies.stored(blob, "b")
    root = stand.channels.root / "b"
    (path,) = [one for one in root.rglob(location.key.rpartition("/")[2]) if one.is_file()]
    path.write_bytes(CONTENT)
    counts = turn(stand)
    assert (counts["suspects"], counts["renamed"]) == (0, 1)
    assert turn(stand)["renamed"] == 0


def test_the_last_copys_loss_goes_to_the_backups(stand: Stand) -> None:
    copies = Copies(stand, replicas=())
    blob = copies.store("x", CONTENT)
    lose(copies, blob, "a")
    turn(stand)
    assert turn(stand)["restore"] == 1
    assert copies.places(blob) == {"a": ["stored"]}
    assert len(stand.waiting("restore")) == 1


def test_turns_that_follow_soon_do_not_put_the_second_look_off(stand: Stand) -> None:
    """As of several schedulers: none of their turns is a minute behind the last one."""
    copies = Copies(stand, replicas=())
    lose(copies, copies.store("x", CONTENT), "a")
    turn(stand)
    with stand.db.engine.begin() as connection:
        connection.execute(sa.update(LocationAudit).values(turned_at=utc_now(-50)))
    assert turn(stand, again_seconds=60.0)["suspects"] == 1
    with stand.db.engine.begin() as connection:
        looked = connection.scalar(
            sa.select(LocationAudit.turned_at).where(LocationAudit.channel == "a")
        )
        assert looked is not None
        connection.execute(
            sa.update(LocationAudit).values(turned_at=looked - dt.timedelta(seconds=20))
        )
    assert turn(stand, again_seconds=60.0)["restore"] == 1


def test_a_channel_that_does_not_answer_loses_nothing(copies: Copies, stand: Stand) -> None:
    blob = copies.store("x", CONTENT)
    stand.work_all("replica")
    lose(copies, blob, "b")
    assert turn(stand)["suspects"] == 1
    stand.channels.faulty["b"].fail_always(DOWN)
    for _ in range(2):
        counts = turn(stand)
        assert (counts["channels_away"], counts["repair"]) == (1, 0)
    stand.channels.faulty["b"].heal()
    audit = stand.look(lambda session: session.get_one(LocationAudit, "b"))
    assert audit.error_detail
    assert audit.suspects


def test_a_damaged_source_met_while_copying_is_repaired_as_well(stand: Stand) -> None:
    copies = Copies(stand, replicas=("b",))
    blob = copies.store("x", CONTENT)
    stand.work_all("replica")
    lose(copies, blob, "a")
    copies.rules("b", "c")
    turn(stand, sample=0)
    assert stand.work_all("replica") == ["completed"]
    assert copies.content(blob, "c") == CONTENT
    assert stand.work_all("replica") == ["completed"]
    assert copies.content(blob, "a") == CONTENT


def test_the_sample_rotates(copies: Copies, stand: Stand) -> None:
    for number in range(3):
        copies.store(f"k{number}", f"content {number}".encode())
    seen = [turn(stand, sample=2)["checked"] for _ in range(3)]
    assert seen == [2, 1, 2]
