"""Two who find the same row missing at the same moment: both are answered, and one row is made."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.accounts import ensure_tenant
from shared.catalog.buckets import BucketSpec, put_bucket
from shared.catalog.channels import ChannelInput, put_channel
from shared.catalog.idempotency import claim, keep
from shared.catalog.locking import lock_key
from shared.catalog.models import (
    Bucket,
    ChannelRecord,
    IdempotencyRecord,
    ObjectRow,
    OriginPull,
    RegionRow,
    Tenant,
    UploadSession,
    WebhookReviewer,
)
from shared.catalog.origins.policy import OriginPolicy
from shared.catalog.origins.pulling import begin_pull, rule_of
from shared.catalog.regions import drain
from shared.catalog.uploading.rules import SessionSpec, UploadLimits
from shared.catalog.uploading.sessions import begin_session
from shared.catalog.webhook_reviewers import put_reviewer
from tests.support.catalogue import TENANT, World, together

#: SQLite has one writer at a time.
pytestmark = pytest.mark.databases("mariadb")

_LIMITS = UploadLimits(
    max_object_bytes=2**30,
    min_part_bytes=1,
    max_part_bytes=2**20,
    expiry_seconds=3600.0,
    max_open=100,
)
_ROUNDS, _AT_ONCE = 4, 4

Write = Callable[[World, Session, Bucket, str], object]


def _drain(world: World, session: Session, bucket: Bucket, name: str) -> None:
    drain(session, name, to="us", force=True)


def _channel(world: World, session: Session, bucket: Bucket, name: str) -> None:
    channel = ChannelInput(name=name, kind="file", settings={"root": f"/{name}"})
    put_channel(session, channel, secrets=world.secrets)


def _bucket(world: World, session: Session, bucket: Bucket, name: str) -> None:
    put_bucket(session, TENANT, name, BucketSpec(channels=["a"], replica_channels=["b"]))


def _tenant(world: World, session: Session, bucket: Bucket, name: str) -> None:
    ensure_tenant(session, name)


def _reviewer(world: World, session: Session, bucket: Bucket, name: str) -> None:
    put_reviewer(
        session,
        TENANT,
        name,
        url="https://a.test",
        status_url=None,
        secrets=None,
        box=world.secrets,
    )


def _upload(world: World, session: Session, bucket: Bucket, name: str) -> None:
    spec = SessionSpec(operation_id=name, key="k", size=9, content_type="text/plain")
    begin_session(session, bucket, spec, _LIMITS)


def _pull(world: World, session: Session, bucket: Bucket, name: str) -> None:
    rule = rule_of(bucket, name)
    assert rule is not None
    begin_pull(session, world.catalogue, bucket, name, rule)


def _object(world: World, session: Session, bucket: Bucket, name: str) -> None:
    lock_key(session, bucket.id, name, create=True)


def _answer(world: World, session: Session, bucket: Bucket, name: str) -> None:
    if claim(session, TENANT, name, "f" * 64) is None:
        keep(session, TENANT, name, status=200, answer={})


@pytest.mark.parametrize(
    ("write", "model", "made"),
    [
        (_drain, RegionRow, _ROUNDS),
        (_channel, ChannelRecord, 2 + _ROUNDS),
        (_bucket, Bucket, 1 + _ROUNDS),
        (_tenant, Tenant, 1 + _ROUNDS),
        (_reviewer, WebhookReviewer, _ROUNDS),
        (_upload, UploadSession, _ROUNDS),
        (_pull, OriginPull, _ROUNDS),
        (_object, ObjectRow, _ROUNDS),
        (_answer, IdempotencyRecord, _ROUNDS),
    ],
)
def test_the_one_that_comes_second_finds_the_firsts(
    world: World, bucket: int, write: Write, model: type[Any], made: int
) -> None:
    rule = {"sources": [{"url": "https://origin.test/"}]}
    spec = BucketSpec(channels=["a"], origin=OriginPolicy.model_validate({"rules": [rule]}))
    world.run(lambda session: put_bucket(session, TENANT, "photos", spec, secrets=world.secrets))
    for number in range(_ROUNDS):
        barrier = threading.Barrier(_AT_ONCE)
        answers = together(
            *[_entering(world, bucket, barrier, write, f"name-{number}") for _ in range(_AT_ONCE)]
        )
        assert [answer for answer in answers if answer is not None] == []
    with world.engine.connect() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(model)) == made


def _entering(
    world: World, bucket_id: int, barrier: threading.Barrier, write: Write, name: str
) -> Callable[[], None]:
    """Return a request whose first try goes on only when all have their transactions open."""
    tries = iter((True,))

    def work(session: Session) -> None:
        bucket = session.get_one(Bucket, bucket_id)
        if next(tries, False):
            barrier.wait(timeout=30)
        write(world, session, bucket, name)

    return lambda: world.run(work)
