"""A deployment that serves no deletions: nothing is deleted, no task is made, nothing is lost.

Another one, that serves them, finds everything that was left to it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from shared.catalog.invariants.rows import row_breaches
from shared.core.clock import utc_now
from shared.core.errors import SwitchedOffError
from shared.storage.errors import ChannelUnavailable
from tests.integration.handlers.sweeping import passes, sweeper
from tests.integration.handlers.test_crashes import check_all
from tests.support.handlers import Stand


def breaches(stand: Stand, *, serves_deletions: bool) -> list[str]:
    return stand.look(
        lambda session: [
            str(one)
            for one in row_breaches(
                session,
                now=utc_now(),
                late_seconds=0,
                sweep_seconds=60,
                serves_deletions=serves_deletions,
            )
            # The uploads that are given up may still be on their way.
            if "delet" in one.detail or "condemned" in one.detail
        ]
    )


def test_what_nobody_deletes_waits_for_who_does(stand: Stand) -> None:
    served = stand.catalogue
    off = replace(served, switched_off=frozenset({"delete"}))
    stand.catalogue = off
    stand.upload = replace(stand.upload, catalogue=off)
    bucket = stand.bucket()
    stand.work(stand.put(bucket, "k", b"old").task_id)
    with pytest.raises(SwitchedOffError):
        stand.remove(bucket, "k")
    # Overwritten: nobody needs the old content any more.
    stand.work(stand.put(bucket, "k", b"new").task_id)
    # And an upload that is given up when its first copy was under way already.
    stand.channels.faulty["a"].fail_always(ChannelUnavailable("down"), "put")
    given_up = stand.put(bucket, "k", b"never")
    stand.work(given_up.task_id)
    stand.work(stand.put(bucket, "k", b"newest").task_id)
    states = {stand.blob(one.blob_id).state for one in stand.locations()}
    passes(sweeper(stand), 3)
    assert stand.waiting("delete") == []
    assert "condemned" in states
    assert len(stand.channels.keys("a")) == 2

    assert breaches(stand, serves_deletions=True) != []
    assert breaches(stand, serves_deletions=False) == []

    stand.catalogue = served
    stand.channels.faulty["a"].heal()
    check_all(stand)
    assert len(stand.channels.keys("a") + stand.channels.keys("b")) == 1
