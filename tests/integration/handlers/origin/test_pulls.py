"""The origin protocol: what comes is stored as a PUT would be, and only an absent key is filled."""

from __future__ import annotations

import contextlib
import datetime as dt
import socket

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.invariants.origins import hop_breaches
from shared.catalog.models import Bucket, OriginMiss, OriginPull
from shared.catalog.origins.pulling import NothingToPull, Pulling
from shared.catalog.origins.segments import Segment, add_segment
from shared.catalog.removals import start_removal
from shared.core.clock import utc_now
from shared.fetch import FetchPolicy, resolving
from tests.integration.handlers.sweeping import passes, sweeper
from tests.support.origins import OriginStand
from tests.support.upstream import Asked, Upstream, answer

BODY = b"from far away"
ETAG = '"v1"'

#: What is different on a server is in the file on crashes.
pytestmark = pytest.mark.databases("sqlite")


def breaches(stand: OriginStand) -> list[str]:
    return stand.look(lambda session: [one.subject for one in hop_breaches(session, FetchPolicy())])


@pytest.mark.parametrize(
    "hop", [["h", 80, "10.0.0.1"], ["h", 80, "10.0.0.1", ""], ["h", 80, "10.0.0.1", "11.0.0.0/8"]]
)
def test_a_connection_that_nothing_allowed_is_seen(
    stand: OriginStand, upstream: Upstream, bucket: int, hop: list[object]
) -> None:
    upstream.routes["/base/k"] = answer(BODY)
    pulling = stand.trigger(bucket, "k")
    stand.work(pulling.task_id)
    with stand.bench.engine.begin() as connection:
        connection.execute(sa.update(OriginPull).values(hops={"hops": [hop]}))
    assert breaches(stand) == [f"pull {pulling.pull_id}"]


def test_what_comes_becomes_a_version_and_is_uploaded(
    stand: OriginStand, upstream: Upstream, bucket: int
) -> None:
    upstream.routes["/base/a/b%20c.txt"] = answer(BODY, Content_Type="text/css", ETag=ETAG)
    pulling = stand.trigger(bucket, "a/b c.txt")
    assert stand.work(pulling.task_id) == "completed"

    pull = stand.pull_row(pulling.pull_id)
    assert (pull.state, pull.received_bytes) == ("stored", len(BODY))
    assert pull.hops == {"hops": [["127.0.0.1", upstream.port, "127.0.0.1", "127.0.0.1:*"]]}
    assert breaches(stand) == [], "also for one who does not know the allow-list"
    (version,) = stand.versions()
    assert (version.id, version.state, version.generation) == (pull.version_id, "pending", 1)
    assert version.content_type == "text/css"
    assert stand.task(pulling.task_id)["result"]["outcome"] == "stored"
    assert stand.work(version.task_id) == "completed"
    assert stand.stored_bytes(version.id) == BODY
    (asked,) = upstream.asked
    assert asked.headers["accept-encoding"] == "identity"
    assert "range" not in asked.headers


def test_one_pull_is_open_per_key_and_rule(stand: OriginStand, bucket: int) -> None:
    first = stand.begin(bucket, "a")
    second = stand.begin(bucket, "a")
    other = stand.begin(bucket, "b")
    assert isinstance(first, Pulling)
    assert isinstance(second, Pulling)
    assert isinstance(other, Pulling)
    assert (first.created, second.created, other.created) == (True, False, True)
    assert (second.pull_id, second.task_id) == (first.pull_id, first.task_id)


def remove_prefix(stand: OriginStand, bucket: int, prefix: str) -> None:
    def write(session: Session) -> None:
        start_removal(session, stand.catalogue, session.get_one(Bucket, bucket), prefix=prefix)

    stand.db.run_session(write)


@pytest.mark.parametrize("before", ["never written", "deleted before"])
@pytest.mark.parametrize("act", ["delete", "delete the prefix"])
def test_a_user_who_deletes_during_the_fetch_has_won(
    stand: OriginStand, upstream: Upstream, bucket: int, act: str, before: str
) -> None:
    if before == "deleted before":
        assert stand.work(stand.put(bucket, "a/b", b"old").task_id) == "completed"
        stand.remove(bucket, "a/b")
    known = len(stand.versions())

    def meanwhile(connection: socket.socket, asked: Asked) -> None:
        if act == "delete":
            stand.remove(bucket, "a/b")
        else:
            remove_prefix(stand, bucket, "a/")
        answer(BODY)(connection, asked)

    upstream.routes["/base/a/b"] = meanwhile
    upstream.routes["/base/b"] = answer(BODY)
    pulling, other = stand.trigger(bucket, "a/b"), stand.trigger(bucket, "b")
    assert stand.work(pulling.task_id) == "completed"
    pull = stand.pull_row(pulling.pull_id)
    assert (pull.state, pull.error_code, pull.version_id) == ("lost", "key_written", None)
    assert len(stand.versions()) == known
    assert stand.staged_keys() == set()
    # Another key's is none of that, and whoever asks for the key later begins anew.
    assert stand.work(other.task_id) == "completed"
    assert stand.pull_row(other.pull_id).state == "stored"
    upstream.routes["/base/a/b"] = answer(BODY)
    again = stand.trigger(bucket, "a/b")
    assert stand.work(again.task_id) == "completed"
    assert stand.pull_row(again.pull_id).state == "stored"


@pytest.mark.parametrize("act", ["put", "put and delete"])
def test_a_user_who_writes_during_the_fetch_has_won(
    stand: OriginStand, upstream: Upstream, bucket: int, act: str
) -> None:
    written: list[int] = []
    named: set[str | None] = set()

    def meanwhile(connection: socket.socket, asked: Asked) -> None:
        written.append(stand.put(bucket, "a", b"the user's").version_id)
        named.add(stand.version(written[0]).staging_key)
        if act == "put and delete":
            stand.remove(bucket, "a")
        answer(BODY)(connection, asked)

    upstream.routes["/base/a"] = meanwhile
    pulling = stand.trigger(bucket, "a")
    assert stand.work(pulling.task_id) == "completed"
    pull = stand.pull_row(pulling.pull_id)
    assert (pull.state, pull.error_code, pull.version_id) == ("lost", "key_written", None)
    (version,) = stand.versions()
    assert [version.id] == written
    assert version.state == ("pending" if act == "put" else "deleted")
    assert stand.staged_keys() == named


def test_a_key_written_before_the_fetch_is_not_asked_for(
    stand: OriginStand, upstream: Upstream, bucket: int
) -> None:
    pulling = stand.trigger(bucket, "a")
    stand.put(bucket, "a", b"the user's")
    assert stand.work(pulling.task_id) == "completed"
    assert stand.pull_row(pulling.pull_id).state == "lost"
    assert upstream.asked == []


def test_what_is_there_or_in_review_is_not_pulled(stand: OriginStand, upstream: Upstream) -> None:
    bucket = stand.bucket(reject_keywords=["bad"])
    stand.fills(bucket, upstream.url)
    put = stand.put(bucket, "a", b"something")
    assert stand.begin(bucket, "a") == NothingToPull("reviewing")
    stand.work(put.task_id)
    assert stand.begin(bucket, "a") == NothingToPull("present")


def test_a_reviewed_bucket_reviews_what_comes_and_does_not_ask_again_for_what_it_rejected(
    stand: OriginStand, upstream: Upstream
) -> None:
    bucket = stand.bucket(reject_keywords=["bad"])
    stand.fills(bucket, upstream.url)
    upstream.routes["/a"] = answer(b"something bad", Content_Type="text/plain")
    stand.work(stand.trigger(bucket, "a").task_id)
    (version,) = stand.versions()
    assert version.state == "reviewing"
    stand.work(version.task_id)
    assert stand.version(version.id).state == "blocked"
    assert stand.begin(bucket, "a") == NothingToPull("blocked")
    assert isinstance(stand.begin(bucket, "a", asked=True), Pulling)


def test_a_deleted_key_is_pulled_again_at_its_new_generation(
    stand: OriginStand, upstream: Upstream, bucket: int
) -> None:
    upstream.routes["/base/a"] = answer(BODY)
    stand.work(stand.trigger(bucket, "a").task_id)
    stand.remove(bucket, "a")
    assert stand.work(stand.trigger(bucket, "a").task_id) == "completed"
    assert [one.state for one in stand.versions()] == ["deleted", "pending"]


def test_a_rule_that_changed_ends_the_pull(
    stand: OriginStand, upstream: Upstream, bucket: int
) -> None:
    pulling = stand.trigger(bucket, "a")
    stand.fills(bucket, f"{upstream.url}/other")
    assert stand.work(pulling.task_id) == "cancelled"
    assert stand.pull_row(pulling.pull_id).state == "cancelled"
    assert upstream.asked == []
    assert stand.trigger(bucket, "a").created


def test_an_end_that_the_pull_did_not_hear_of_is_settled(stand: OriginStand, bucket: int) -> None:
    pulling = stand.trigger(bucket, "a")
    assert pulling.task_id is not None
    stand.bench.set(pulling.task_id, state="failed", error_code="lost", finished_at=utc_now())
    passes(sweeper(stand), 2)
    assert stand.work_all("origin") == ["completed"]
    pull = stand.pull_row(pulling.pull_id)
    assert (pull.state, pull.error_code) == ("failed", "lost")


def test_what_is_over_is_forgotten(stand: OriginStand, upstream: Upstream, bucket: int) -> None:
    upstream.routes["/base/b"] = answer(BODY)
    for key in ("a", "b"):
        stand.work(stand.trigger(bucket, key).task_id)
    missed, stored = stand.pulls()
    passes(sweeper(stand))
    assert stand.miss(bucket, "a") is not None
    assert len(stand.pulls()) == 2

    def age(session: Session) -> None:
        week = utc_now() - dt.timedelta(days=8)
        session.execute(sa.update(OriginMiss).values(expires_at=week))
        session.execute(
            sa.update(OriginPull).where(OriginPull.id == stored.id).values(ended_at=week)
        )
        add_segment(session, missed.id, Segment(0, "live/00/late", 1))

    stand.db.run_session(age)
    passes(sweeper(stand))
    assert stand.miss(bucket, "a") is None
    assert [one.id for one in stand.pulls()] == [missed.id]
    assert stand.segments() == []


def test_names_of_others_that_do_not_resolve_cost_no_try(
    stand: OriginStand, upstream: Upstream
) -> None:
    bucket = stand.bucket()
    stand.fills(bucket, f"http://localhost:{upstream.port}", tries=1)
    pulling = stand.trigger(bucket, "a")
    with contextlib.ExitStack() as others:
        for _ in range(resolving.MAX_LOOKUPS):
            others.enter_context(resolving._slots)
        stand.work(pulling.task_id)
    task = stand.task(pulling.task_id)
    assert (task["attempt"], stand.pull_row(pulling.pull_id).state) == (0, "open")
    assert task["checkpoint"]["tries"] == {"0": 0}
