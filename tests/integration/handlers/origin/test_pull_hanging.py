"""An origin that hangs holds up no other bucket, not even on the same host: real threads."""

from __future__ import annotations

import dataclasses
import socket

import pytest

from services.origin import actors
from services.origin.hosts import Hosts
from shared.catalog.channel_slots import ChannelLimits, ChannelSlots
from shared.catalog.kinds import RegisteredCatalogue
from shared.catalog.origins.pulling import Pulling
from shared.catalog.origins.slots import OriginLimits
from shared.core.shares import Shares
from shared.fetch import FetchLimits
from shared.outbox.outbox import Outbox
from tests.support.eventually import eventually
from tests.support.origins import OriginStand
from tests.support.threads import on_threads
from tests.support.upstream import Asked, Upstream, answer

pytestmark = pytest.mark.databases("mariadb")

BODY = b"from far away"


@pytest.mark.parametrize("hangs", ["without an answer", "in the body"])
def test_a_path_that_hangs_holds_up_no_other_bucket(
    stand: OriginStand,
    upstream: Upstream,
    bucket: int,
    blox_url: str,
    redis_url: str,
    namespace: str,
    hangs: str,
) -> None:
    threads = 4

    def hang(connection: socket.socket, asked: Asked) -> None:
        if hangs == "in the body":
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")
        upstream.stopped(60)

    def attach(
        outbox: Outbox, catalogue: RegisteredCatalogue, shares: Shares, _: ChannelSlots
    ) -> None:
        deps = dataclasses.replace(
            stand.origin,
            db=outbox.context.db,
            catalogue=catalogue,
            limits=FetchLimits(),
            hosts=Hosts(per_host=threads, shares=shares),
            resources=outbox.resources,
            max_running=2 * threads,
        )
        actors.register(outbox, catalogue, deps)

    def tries(pull: Pulling) -> int:
        plan = stand.task(pull.task_id)["checkpoint"]
        return 0 if plan is None else sum(plan["tries"].values())

    ill = stand.bucket("ill")
    stand.fills(ill, f"{upstream.url}/ill")
    for n in range(12):
        upstream.routes[f"/ill/k{n}"] = hang
        upstream.routes[f"/base/k{n}"] = answer(BODY)
    hanging = [stand.trigger(ill, f"k{n}") for n in range(12)]
    limits = OriginLimits(ChannelLimits(stand.channels), max_running=2 * threads)
    with on_threads(stand, blox_url, redis_url, namespace, attach, threads=threads, limits=limits):
        eventually(lambda: len(upstream.asked) >= threads - 1, 20, message="they ask in vain")
        pulls = [stand.trigger(bucket, f"k{n}") for n in range(6)]
        for pull in pulls:
            eventually(
                lambda pull=pull: stand.pull_row(pull.pull_id).state == "stored",  # type: ignore[misc]
                15,
            )
        # Only those who still ask have used a try, and none of them an attempt.
        eventually(lambda: sum(map(tries, hanging)) == threads - 1)
        assert sum(stand.task(pull.task_id)["attempt"] for pull in hanging) == 0
