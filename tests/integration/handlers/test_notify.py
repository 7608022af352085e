"""What a tenant hears of its objects: what happened, signed, once the commit has made it so."""

from __future__ import annotations

import datetime as dt
import ssl
from collections.abc import Iterator
from functools import partial

import pytest
import sqlalchemy as sa

from services.notify.handlers import Deps, send
from services.notify.turns import Turns
from shared.catalog.deletes import delete_object
from shared.catalog.invariants.notifications import notification_breaches
from shared.catalog.models import (
    Delivery,
    DeliveryState,
    Notification,
    Subscription,
    utc_clock,
    utc_now,
)
from shared.catalog.notifying.deliveries import FAILURES_TO_REST, refused
from shared.catalog.notifying.subscriptions import (
    add_subscription,
    delete_subscription,
    drop_old_secrets,
    enable,
    find_subscription,
    replay,
    rotate_secret,
    secrets_of,
    send_test,
)
from shared.core.errors import InvalidError, SwitchedOffError
from shared.core.outcomes import Snooze
from shared.fetch import Fetcher, FetchPolicy
from shared.outbox.cancel import cancel
from shared.outbox.manual import retry
from shared.outbox.schema import tasks
from shared.storage.errors import ChannelRefused
from tests.integration.handlers.sweeping import passes, sweeper
from tests.support.handlers import TENANT, Stand
from tests.support.reviewer import Reviewer, running_reviewer

#: More than the first rest, less than the third.
REST = dt.timedelta(seconds=9)
ALL = ("object.stored", "object.blocked", "object.deleted", "object.failed")


@pytest.fixture
def receiver() -> Iterator[Reviewer]:
    """An address that answers 200 and keeps what it was told."""
    with running_reviewer() as made:
        made.script = lambda _asked: (200, {})
        yield made


def deps(stand: Stand, allow: tuple[str, ...] = ("127.0.0.0/8:*",)) -> Deps:
    fetcher = Fetcher(FetchPolicy(allow=allow), tls=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    return Deps(
        db=stand.db,
        catalogue=stand.catalogue,
        secrets=stand.secrets,
        fetcher=fetcher,
        turns=Turns(4),
    )


def subscribe(
    stand: Stand, receiver: Reviewer, *events: str, bucket: int | None = None, prefix: str = ""
) -> int:
    made = stand.db.run_session(
        lambda session: add_subscription(
            session,
            stand.catalogue,
            TENANT,
            url=receiver.url,
            events=events or ALL,
            bucket_id=bucket,
            prefix=prefix,
            box=stand.secrets,
        )
    )
    assert made.secret is not None
    receiver.secrets = [made.secret]
    return made.subscription.id


def deliver(stand: Stand, *only: int | None, **options: tuple[str, ...]) -> list[str]:
    """Run what waits in the queue, or these of it; returns the states it came to."""
    states = []
    for task_id in filter(None, only) if only else stand.waiting("notify"):
        execution = stand.claim(task_id)
        assert execution.kind is not None
        answer = send(
            execution, execution.kind.load(execution.task.payload), deps(stand, **options)
        )
        if not execution.completed:
            assert answer is not None
            stand.bench.answers.settle(execution, answer)
        stand.bench.context.executions.remove(execution)
        states.append(stand.state(task_id))
    return states


def deliveries(stand: Stand) -> list[Delivery]:
    return stand.look(
        lambda session: list(session.scalars(sa.select(Delivery).order_by(Delivery.id)))
    )


def subscription(stand: Stand, subscription_id: int) -> Subscription:
    return stand.look(lambda session: session.get_one(Subscription, subscription_id))


def secrets_now(stand: Stand, subscription_id: int) -> list[str]:
    return stand.look(
        lambda session: secrets_of(session.get_one(Subscription, subscription_id), stand.secrets)
    )


def stored(stand: Stand, bucket: int, key: str, content: bytes = b"hello") -> int:
    put = stand.put(bucket, key, content)
    assert stand.work(put.task_id) == "completed"
    return put.version_id


def heard(receiver: Reviewer) -> list[tuple[str, str]]:
    return [(one.question["type"], one.question["data"]["key"]) for one in receiver.asked]


def test_a_tenant_hears_what_became_of_its_objects(stand: Stand, receiver: Reviewer) -> None:
    bucket = stand.bucket()
    subscribe(stand, receiver)
    version_id = stored(stand, bucket, "k")
    stand.remove(bucket, "k")

    assert deliver(stand) == ["completed"] * 2

    assert heard(receiver) == [("object.stored", "k"), ("object.deleted", "k")]
    data = receiver.asked[0].question["data"]
    assert (data["bucket"], data["version_id"], data["size"]) == ("photos", version_id, 5)
    assert "bucket_id" not in data
    assert {one.state for one in deliveries(stand)} == {DeliveryState.DELIVERED}
    assert len({one.message_id for one in receiver.asked}) == 2


def test_blocked_and_failed_objects_are_told_with_their_code(
    stand: Stand, receiver: Reviewer
) -> None:
    subscribe(stand, receiver, "object.blocked", "object.failed")
    reviewed = stand.bucket("reviewed", max_bytes=3)
    put = stand.put(reviewed, "big", b"too much")
    stand.work(put.task_id)
    plain = stand.bucket("plain", channels=["c"])
    stand.channels.faulty["c"].fail_always(ChannelRefused("forbidden"))
    failing = stand.put(plain, "lost", b"bytes")
    while stand.state(failing.task_id) != "failed":
        stand.work(failing.task_id)

    assert deliver(stand) == ["completed"] * 2

    assert heard(receiver) == [("object.blocked", "big"), ("object.failed", "lost")]
    assert receiver.asked[1].question["data"]["code"] == "channels_spent"


def test_only_what_was_asked_for_is_told(stand: Stand, receiver: Reviewer) -> None:
    photos, films = stand.bucket("photos"), stand.bucket("films")
    subscribe(stand, receiver, "object.stored", bucket=photos, prefix="a/")
    for bucket, key in ((photos, "a/1"), (photos, "b/1"), (films, "a/1")):
        stored(stand, bucket, key, key.encode() + bytes([bucket]))
    stand.remove(photos, "a/1")
    deliver(stand)
    assert heard(receiver) == [("object.stored", "a/1")]


def test_nothing_is_told_that_did_not_happen(stand: Stand, receiver: Reviewer) -> None:
    bucket = stand.bucket()
    stored(stand, bucket, "k")
    subscribe(stand, receiver)

    def rolled_back(session: object) -> None:
        delete_object(session, stand.catalogue, bucket, "k")  # type: ignore[arg-type]
        raise InvalidError("no")

    with pytest.raises(InvalidError):
        stand.db.run_session(rolled_back)
    assert deliveries(stand) == []


def test_a_receiver_that_is_away_is_tried_again_and_given_a_rest(
    stand: Stand, receiver: Reviewer
) -> None:
    bucket = stand.bucket()
    own = subscribe(stand, receiver)
    for key in "abcd":
        stored(stand, bucket, key, key.encode())
    receiver.script = lambda _asked: (500, {})

    states = deliver(stand)

    assert states == ["scheduled"] * 4
    assert len(receiver.asked) == 3, "after three failures the fourth waits without a try"
    assert [one.tries for one in deliveries(stand)] == [1, 1, 1, 0]
    attempts = [stand.task(one.task_id)["attempt"] for one in deliveries(stand)]
    assert attempts == [1, 1, 1, 0]
    assert subscription(stand, own).failing_until is not None

    receiver.script = lambda _asked: (204, {})
    with stand.bench.engine.begin() as connection:
        connection.execute(sa.update(Subscription).values(failing_until=utc_now(-1)))
    assert deliver(stand) == ["completed"] * 4
    assert subscription(stand, own).failures == 0


def test_a_test_that_arrives_sends_at_once_what_waits_for_the_address(
    stand: Stand, receiver: Reviewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.catalog.notifying.waking._PAGE", 3)
    bucket = stand.bucket()
    own, other = subscribe(stand, receiver), subscribe(stand, receiver, "object.stored")
    for key in "abcd":
        stored(stand, bucket, key, key.encode())
    receiver.script = lambda _asked: (500, {})
    deliver(stand)
    assert {stand.state(one.task_id or 0) for one in deliveries(stand)} == {"scheduled"}

    def test() -> int | None:
        return stand.db.run_session(
            lambda session: send_test(
                session, stand.catalogue, find_subscription(session, TENANT, own, lock=True)
            )
        ).task_id

    receiver.secrets = secrets_now(stand, own)
    asked = len(receiver.asked)
    assert deliver(stand, test()) == ["scheduled"], "it was sent, whatever the rest"
    assert len(receiver.asked) == asked + 1
    receiver.script = lambda _asked: (200, {})
    assert deliver(stand, test()) == ["completed"]

    states: dict[int, set[str]] = {own: set(), other: set()}
    for one in deliveries(stand):
        if one.state == DeliveryState.PENDING:
            states[one.subscription_id].add(stand.state(one.task_id or 0))
    assert states == {own: {"pending"}, other: {"scheduled"}}


def test_what_is_about_to_rest_when_its_address_is_well_again_does_not(
    stand: Stand, receiver: Reviewer
) -> None:
    own = subscribe(stand, receiver)
    stored(stand, stand.bucket(), "k")
    (one,) = deliveries(stand)
    with stand.bench.engine.begin() as connection:
        connection.execute(sa.update(Subscription).values(failing_until=utc_now(900)))
    execution = stand.claim(one.task_id or 0)
    assert execution.kind is not None
    answer = send(execution, execution.kind.load(execution.task.payload), deps(stand))
    assert isinstance(answer, Snooze)
    stand.db.run_session(
        lambda session: enable(
            session, find_subscription(session, TENANT, own, lock=True), is_enabled=True
        )
    )

    stand.bench.answers.settle(execution, answer)

    stand.bench.context.executions.remove(execution)
    assert stand.state(one.task_id or 0) == "pending"


def test_a_receiver_that_is_gone_is_not_asked_again_and_can_be_asked_by_hand(
    stand: Stand, receiver: Reviewer
) -> None:
    bucket = stand.bucket()
    own = subscribe(stand, receiver)
    stored(stand, bucket, "a", b"a")
    stored(stand, bucket, "b", b"b")
    receiver.script = lambda _asked: (410, {})

    assert deliver(stand) == ["failed"] * 2

    assert len(receiver.asked) == 1
    off = subscription(stand, own)
    assert (off.is_enabled, off.disabled_code) == (0, "gone")
    assert {one.state for one in deliveries(stand)} == {DeliveryState.FAILED}
    stored(stand, bucket, "c", b"c")
    assert len(deliveries(stand)) == 2

    receiver.script = lambda _asked: (200, {})

    def again(session: sa.orm.Session) -> tuple[int, ...]:
        found = find_subscription(session, TENANT, own, lock=True)
        enable(session, found, is_enabled=True)
        return replay(session, stand.catalogue, found).again

    for task_id in stand.db.run_session(again):
        retry(stand.bench.context, task_id, by="test")
    assert deliver(stand) == ["completed"] * 2
    assert {one.state for one in deliveries(stand)} == {DeliveryState.DELIVERED}
    first, *others = [one.message_id for one in receiver.asked]
    assert first in others, "the id tells a receiver what it has seen"


def test_addresses_of_private_networks_are_refused_when_they_are_used(
    stand: Stand, receiver: Reviewer
) -> None:
    bucket = stand.bucket()
    subscribe(stand, receiver)
    stored(stand, bucket, "k")
    assert deliver(stand, allow=()) == ["failed"]
    assert receiver.asked == []
    (one,) = deliveries(stand)
    assert (one.state, one.error_code) == (DeliveryState.FAILED, "port_forbidden")


def test_secrets_are_changed_without_missing_an_event(stand: Stand, receiver: Reviewer) -> None:
    own = subscribe(stand, receiver)
    (old,) = receiver.secrets

    def rotate(session: sa.orm.Session) -> str:
        found = find_subscription(session, TENANT, own, lock=True)
        return rotate_secret(session, found, stand.secrets)

    fresh = stand.db.run_session(rotate)
    for secret in (old, fresh):
        receiver.secrets = [secret]
        stand.db.run_session(
            lambda session: send_test(
                session, stand.catalogue, find_subscription(session, TENANT, own)
            )
        )
        assert deliver(stand) == ["completed"]
    stand.db.run_session(
        lambda session: drop_old_secrets(
            session, find_subscription(session, TENANT, own, lock=True), stand.secrets
        )
    )
    receiver.secrets = [old]
    stand.db.run_session(
        lambda session: send_test(session, stand.catalogue, find_subscription(session, TENANT, own))
    )
    assert deliver(stand) == ["scheduled"]
    assert receiver.forged == 1


def test_a_subscription_that_is_removed_leaves_nothing_waiting(
    stand: Stand, receiver: Reviewer
) -> None:
    bucket = stand.bucket()
    own = subscribe(stand, receiver)
    stored(stand, bucket, "k")
    stand.db.run_session(
        lambda session: delete_subscription(
            session, find_subscription(session, TENANT, own, lock=True)
        )
    )
    assert deliver(stand) == ["failed"]
    assert receiver.asked == []
    assert {one.state for one in deliveries(stand)} == {DeliveryState.FAILED}


def test_switched_off_nothing_is_written(stand: Stand, receiver: Reviewer) -> None:
    bucket = stand.bucket()
    subscribe(stand, receiver)
    object.__setattr__(stand.catalogue, "switched_off", frozenset({"notify"}))
    stored(stand, bucket, "k")
    assert deliveries(stand) == []
    with pytest.raises(SwitchedOffError):
        subscribe(stand, receiver)


def test_failures_at_the_same_time_make_no_long_rest(stand: Stand, receiver: Reviewer) -> None:
    own = subscribe(stand, receiver)
    bucket = stand.bucket()
    for number in range(8):
        stored(stand, bucket, str(number), b"%d" % number)
    for one in deliveries(stand):
        stand.db.run_session(
            partial(refused, delivery_id=one.id, status=500, code="status_500", is_gone=False)
        )
    late = subscription(stand, own)
    assert late.failures == FAILURES_TO_REST
    now = stand.look(lambda session: session.scalar(sa.select(utc_clock())))
    assert late.failing_until is not None
    assert now is not None
    assert late.failing_until - now < REST


def test_what_ended_long_ago_is_forgotten_what_waits_stays(
    stand: Stand, receiver: Reviewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.catalog.sweeps.context.PAGE_ROWS", 2)
    bucket = stand.bucket()
    subscribe(stand, receiver, "object.stored")
    for number in range(5):
        stored(stand, bucket, str(number), b"%d" % number)
    first, *_ = deliveries(stand)
    cancel(stand.bench.context, stand.bench.enqueuer, first.task_id or 0, by="test")
    deliver(stand)
    assert stand.state(first.task_id or 0) == "cancelled"
    with stand.bench.engine.begin() as connection:
        failed = sa.update(tasks).where(tasks.c.id == first.task_id).values(state="failed")
        connection.execute(failed)
    stored(stand, bucket, "waits", b"w")
    stored(stand, bucket, "young", b"y")
    ages = {6: 90, 7: 1}
    with stand.bench.engine.begin() as connection:
        for one in deliveries(stand):
            then = utc_now(-86400 * ages.get(one.id, 40))
            ended = {} if one.ended_at is None else {"ended_at": then}
            connection.execute(
                sa.update(Delivery).where(Delivery.id == one.id).values(created_at=then, **ended)
            )
            connection.execute(
                sa.update(Notification)
                .where(Notification.id == one.notification_id)
                .values(created_at=then)
            )
    assert passes(sweeper(stand, notification_days=0)).counts["notifications"] == {}
    counts = passes(sweeper(stand, notification_days=30)).counts["notifications"]
    assert counts == {"deliveries": 5, "notifications": 5}
    with stand.bench.engine.connect() as connection:
        kept = connection.scalar(sa.select(sa.func.count()).where(tasks.c.kind == "notify.send"))
    assert kept == 2, "also what had failed is forgotten with its delivery"
    assert [one.id for one in deliveries(stand)] == [6, 7]
    assert deliver(stand) == ["completed"] * 2


def test_the_check_sees_deliveries_without_work_and_work_without_deliveries(
    stand: Stand, receiver: Reviewer
) -> None:
    bucket = stand.bucket()
    subscribe(stand, receiver)
    for key in ("fine", "lost", "idle", "told"):
        stored(stand, bucket, key, key.encode())

    def found() -> set[tuple[str, str]]:
        def read(session: sa.orm.Session) -> set[tuple[str, str]]:
            now = session.scalar(sa.select(utc_clock()))
            assert now is not None
            late = now + dt.timedelta(seconds=60)
            return {(one.invariant, one.subject) for one in notification_breaches(session, late)}

        return stand.look(read)

    assert found() == set()
    _fine, lost, idle, told = deliveries(stand)
    with stand.bench.engine.begin() as connection:
        connection.execute(
            sa.update(tasks).where(tasks.c.id == lost.task_id).values(state="failed")
        )
        connection.execute(
            sa.update(Delivery).where(Delivery.id == idle.id).values(state="delivered")
        )
        connection.execute(sa.delete(Notification).where(Notification.id == told.notification_id))
    assert found() == {
        ("unfinished rows have their task", f"delivery {lost.id}"),
        ("unfinished tasks have their row", f"task {idle.task_id}"),
        ("deliveries have their event", f"delivery {told.id}"),
    }
