"""Few operations, few keys, many actors: parts, completions, aborts, expiries, lost leases, sweeps.

Every operation has one result or none, every version the bytes that were frozen, and nothing leaks.
Between them others PUT and DELETE the same keys: what is read in the end is the last write.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from shared.catalog.invariants.rows import row_breaches
from shared.catalog.models import SessionState, UploadPart, UploadSession, Version
from shared.core.clock import Deadline, utc_now
from shared.core.errors import RequestError
from tests.integration.handlers.sweeping import passes, sweeper
from tests.integration.handlers.test_soak import work
from tests.support.handlers import Stand
from tests.support.outbox import Thread
from tests.support.uploads import abort, backdate, begin, complete, send

CONTENTS = [b"one" * 50_000, b"two", b"three" * 40_000]
OPERATIONS = 40
CLIENTS, WORKERS = 4, 2


@pytest.fixture
def crowd(blox_url: str, tmp_path: Path, stand: Stand) -> Iterator[list[Stand]]:
    """A process of its own for each actor."""
    made = [Stand(blox_url, tmp_path, node=f"node-{n}") for n in range(CLIENTS + WORKERS)]
    yield made
    for one in made:
        one.close()


def act(stand: Stand, bucket: int, name: str) -> None:
    """Do anything with anybody's operations."""
    dice = random.Random(name)
    for _ in range(OPERATIONS):
        number = dice.randrange(10)
        try:
            upload = begin(stand, bucket, f"k{number % 2}", operation_id=f"op-{number}")
            for _ in range(dice.randrange(3)):
                send(stand, upload, dice.randrange(1, 4), dice.choice(CONTENTS))
            chance = dice.random()
            if chance < 0.4:
                complete(stand, upload)
            elif chance < 0.5:
                abort(stand, upload)
            elif chance < 0.6:
                backdate(stand, upload, only=SessionState.OPEN)
            elif chance < 0.64:
                stand.put(bucket, upload.key, dice.choice(CONTENTS))
            elif chance < 0.68:
                stand.remove(bucket, upload.key)
        except RequestError:
            continue  # Gone, frozen, expired or over: another was faster.


def uploads(stand: Stand, *states: SessionState) -> list[UploadSession]:
    return stand.look(
        lambda session: list(
            session.scalars(sa.select(UploadSession).where(UploadSession.state.in_(states)))
        )
    )


def last_written(stand: Stand, bucket: int, key: str) -> tuple[int, int | None]:
    """Return the generations of a key's last version and of the one that is read, if any is."""
    row = stand.object(bucket, key)
    newest = stand.look(
        lambda session: session.scalar(
            sa.select(sa.func.max(Version.generation)).where(Version.object_id == row.id)
        )
    )
    served = None if row.served_version_id is None else stand.version(row.served_version_id)
    return newest or 0, None if served is None else served.generation


@pytest.mark.databases("mariadb")
def test_every_operation_has_one_result_and_nothing_leaks(stand: Stand, crowd: list[Stand]) -> None:
    bucket = stand.bucket()
    done, stop = threading.Event(), threading.Event()

    def rest() -> bool:
        return not (stand.waiting("upload") or stand.waiting("delete"))

    def sweep() -> None:
        # Staging keeps its age: a file that was just written is not named yet.
        sweeps = sweeper(stand, staging_age_seconds=3600.0)
        while not stop.is_set():
            assert sweeps.run_once(deadline=Deadline(30), check=lambda: None).errors == {}
            stop.wait(0.05)

    callers = [
        Thread(lambda one=one: act(one, bucket, one.bench.context.node))  # type: ignore[misc]
        for one in crowd[:CLIENTS]
    ]
    workers = [
        Thread(lambda one=one: work(one, done, rest))  # type: ignore[misc]
        for one in crowd[CLIENTS:]
    ]
    sweeping = Thread(sweep)
    for caller in callers:
        caller.join_answer(100)
    done.set()
    for worker in workers:
        worker.join_answer(100)
    stop.set()
    sweeping.join_answer(30)

    assert uploads(stand, SessionState.COMPLETING) == []
    finished = uploads(stand, SessionState.DONE)
    assert finished
    for upload in finished:
        assert upload.result is not None
        assert upload.version_id is not None
        version = stand.version(upload.version_id)
        assert (version.sha256, version.etag) == (upload.result["sha256"], upload.result["etag"])
        if version.state == "stored":
            stand.stored_bytes(version.id)
    for key in ("k0", "k1"):
        newest, served = last_written(stand, bucket, key)
        assert served in (newest, None), "an older write is read"
    passes(sweeper(stand), 4)
    named = stand.look(lambda session: set(session.scalars(sa.select(UploadPart.staging_key))))
    old = stand.staging.old(minimum_age_seconds=0.0, deadline=Deadline(5))
    assert {entry.key for entry in old} == named
    for upload in uploads(stand, SessionState.OPEN, SessionState.FAILED):
        backdate(stand, upload)
    passes(sweeper(stand), 4)
    assert list(stand.staging.old(minimum_age_seconds=0.0, deadline=Deadline(5))) == []
    breaches = stand.look(
        lambda session: list(row_breaches(session, now=utc_now(), late_seconds=0, sweep_seconds=0))
    )
    assert breaches == []
