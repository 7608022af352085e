"""All three queues together on a real outbox: Redis, threads, scans."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import sqlalchemy as sa

from services.delete import actors as delete_actors
from services.delete import handlers as deleting
from services.review import actors as review_actors
from services.review import handlers as reviewing
from services.upload import actors as upload_actors
from services.upload import handlers as uploading
from shared.catalog.kinds import register_kinds
from shared.catalog.models import Version
from shared.outbox.outbox import Outbox
from shared.storage.errors import ChannelUnavailable
from tests.support.effects import settings_for
from tests.support.eventually import eventually
from tests.support.handlers import PART_BYTES, Stand


@contextmanager
def working(stand: Stand, url: str, redis_url: str, namespace: str) -> Iterator[Outbox]:
    """Run all three services' handlers in this process; the stand enqueues through this outbox."""
    engine = sa.create_engine(url, pool_size=20)
    outbox = Outbox(engine, redis_url, namespace=namespace, settings=settings_for(4.0))
    catalogue = register_kinds(outbox, grace_seconds=0.0)
    db = outbox.context.db
    actors = [
        upload_actors.register(
            outbox,
            catalogue,
            uploading.Deps(
                db=db, catalogue=catalogue, channels=stand.channels, staging=stand.staging
            ),
        ),
        review_actors.register(
            outbox,
            catalogue,
            reviewing.Deps(db=db, catalogue=catalogue, staging=stand.staging),
        ),
        delete_actors.register(
            outbox,
            catalogue,
            deleting.Deps(db=db, channels=stand.channels),
            replace(stand.prefix, catalogue=catalogue),
        ),
    ]
    assert [actor.queue_name for actor in actors] == ["upload", "review", "delete"]
    stand.catalogue = catalogue
    stopping = threading.Event()
    compensator = outbox.compensator()
    scans = threading.Thread(target=compensator.run, args=(stopping,), daemon=True)
    outbox.start_worker(threads=4)
    scans.start()
    try:
        yield outbox
    finally:
        stopping.set()
        scans.join(10)
        outbox.stop_consuming()
        outbox.drain(5)
        outbox.close(5)
        engine.dispose()


def test_put_overwrite_review_and_delete(
    stand: Stand, blox_url: str, redis_url: str, namespace: str
) -> None:
    plain = stand.bucket()
    reviewed = stand.bucket("reviewed", reject_keywords=["forbidden"])
    contents = {f"file-{n}": os.urandom(PART_BYTES * (n % 3) + n) for n in range(12)}
    with working(stand, blox_url, redis_url, namespace):
        puts = {key: stand.put(plain, key, content) for key, content in contents.items()}
        again = {key: stand.put(plain, key, content[::-1]) for key, content in contents.items()}
        good = stand.put(reviewed, "good", b"a harmless text")
        bad = stand.put(reviewed, "bad", b"a forbidden text")

        def settled() -> bool:
            states = stand.look(lambda session: set(session.scalars(sa.select(Version.state))))
            return not states & {"pending", "reviewing"}

        eventually(settled, 60)
        for key, content in contents.items():
            assert stand.stored_bytes(again[key].version_id) == content[::-1]
            assert stand.version(puts[key].version_id).state in {"superseded", "replaced", "stored"}
        assert stand.stored_bytes(good.version_id) == b"a harmless text"
        assert stand.version(bad.version_id).state == "blocked"

        for key in contents:
            stand.remove(plain, key)
        stand.remove(reviewed, "good")
        eventually(lambda: stand.channels.keys("a") == [], 60)
        eventually(lambda: not any(stand.waiting(q) for q in ("upload", "review", "delete")), 60)
    assert {one.state for one in stand.locations()} <= {"tombstone", "intent"}


@pytest.mark.databases("sqlite")
def test_channel_breaks_while_many_upload(
    stand: Stand, blox_url: str, redis_url: str, namespace: str
) -> None:
    bucket = stand.bucket()
    contents = {f"file-{n}": os.urandom(1000 + n) for n in range(30)}
    puts = {}
    with working(stand, blox_url, redis_url, namespace):
        for n, (key, content) in enumerate(contents.items()):
            if n == 10:
                eventually(lambda: stand.channels.keys("a"), 20)
                stand.channels.faulty["a"].fail_always(ChannelUnavailable("down"))
            puts[key] = stand.put(bucket, key, content)
        eventually(
            lambda: all(stand.version(p.version_id).state == "stored" for p in puts.values()), 60
        )
        stand.channels.faulty["a"].heal()
        for key, content in contents.items():
            assert stand.stored_bytes(puts[key].version_id) == content
    assert stand.channels.keys("b")
