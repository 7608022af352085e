"""Draining no-op tasks: ours (durable, fenced) against plain Dramatiq on Redis, interleaved.

15,000 tasks wait in Redis; two processes with eight threads each are let loose at once. Time runs
from the word to the last task's end (ours: the committed row; Dramatiq: the last acknowledgement).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable

import redis
from dramatiq import Message

from bench.stage import Line, Stage, Workers, at_least, median, stage, wait_until

TASKS = 15_000
BACKLOG = 50_000
PROCESSES = 2
ROUNDS = 5


def insert(stage_: Stage, count: int, state: str) -> list[tuple[int, str]]:
    """Put rows of no-op tasks into the table; returns (task id, dispatch id)."""
    outbox = stage_.outbox()
    pairs: list[tuple[int, str]] = []
    text = (
        "INSERT INTO tasks (queue, region, kind, state, due_at, order_at, payload, dispatch_id, "
        "lease_until, created_at) VALUES "
    )
    with outbox.context.db.transaction() as cursor:
        for start in range(0, count, 500):
            ids = [uuid.uuid4().hex for _ in range(min(500, count - start))]
            rows = ",".join(
                f"('bench', '', 'bench.nothing', '{state}', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), "
                f"'{{\"v\":1,\"p\":{{}}}}', '{dispatch_id}', "
                "UTC_TIMESTAMP(6) + INTERVAL 600 SECOND, UTC_TIMESTAMP(6))"
                for dispatch_id in ids
            )
            cursor.execute(text + rows)
            first = int(cursor.lastrowid)
            pairs.extend(zip(range(first, first + len(ids)), ids, strict=True))
    outbox.context.db.engine.dispose()
    return pairs


def push(stage_: Stage, pairs: list[tuple[int, str]]) -> None:
    """Put their messages into Redis."""
    outbox = stage_.outbox()
    for start in range(0, len(pairs), 500):
        outbox.context.scripts.push("bench", pairs[start : start + 500])


def drain_outbox(stage_: Stage, ahead: int) -> float:
    """Return tasks per second of our workers on 15,000 messages in Redis."""
    stage_.reset()
    push(stage_, insert(stage_, TASKS, "dispatched"))
    workers = Workers(
        PROCESSES,
        "outbox",
        f"--database-url={stage_.database_url}",
        f"--redis-url={stage_.redis.url}",
        f"--ahead={ahead}",
    )
    try:
        workers.go()
        seconds = wait_until(lambda: stage_.count("state = 'completed'") >= TASKS, 120)
    finally:
        workers.stop()
    return TASKS / seconds


def drain_dramatiq(stage_: Stage, prefetch: int | None) -> float:
    """Return tasks per second of plain Dramatiq on the same number of messages."""
    stage_.reset()
    client = redis.Redis.from_url(stage_.redis.url)
    pipe = client.pipeline()
    for number in range(TASKS):
        key = uuid.uuid4().hex
        message: Message[None] = Message(
            queue_name="plain",
            actor_name="plain",
            args=(number,),
            kwargs={},
            options={"redis_message_id": key},
        )
        pipe.hset("dramatiq:plain.msgs", key, message.encode())
        pipe.rpush("dramatiq:plain", key)
    pipe.execute()
    if prefetch is not None:
        os.environ["dramatiq_queue_prefetch"] = str(prefetch)  # noqa: SIM112 - its name
    try:
        workers = Workers(PROCESSES, "dramatiq", f"--redis-url={stage_.redis.url}")
    finally:
        os.environ.pop("dramatiq_queue_prefetch", None)
    try:
        workers.go()
        seconds = wait_until(lambda: client.hlen("dramatiq:plain.msgs") == 0, 120)
    finally:
        workers.stop()
    return TASKS / seconds


def run() -> Iterable[Line]:
    """Measure and compare."""
    ours: list[float] = []
    idle: list[float] = []
    plain: list[float] = []
    equal: list[float] = []
    with stage() as stage_:
        for _ in range(ROUNDS):
            ours.append(drain_outbox(stage_, 64))
            plain.append(drain_dramatiq(stage_, None))
            idle.append(drain_outbox(stage_, 0))
            equal.append(drain_dramatiq(stage_, 8 * 65))
    base = median(plain)
    yield at_least(
        "drain of 15,000 in Redis, against plain Dramatiq",
        median(ours) / base,
        2,
        f"{median(ours):,.0f}/s, Dramatiq {base:,.0f}/s",
    )
    yield at_least(
        "the same, Dramatiq with our prefetch",
        median(ours) / median(equal),
        1,
        f"{median(ours):,.0f}/s, Dramatiq {median(equal):,.0f}/s",
    )
    yield at_least(
        "claims only for idle threads, against plain Dramatiq",
        median(idle) / base,
        0.6,
        f"{median(idle):,.0f}/s, Dramatiq {base:,.0f}/s",
    )
