"""One worker process of a benchmark: `python -m bench.worker MODE ...`. Waits for "go"."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading

import pydantic


class Nothing(pydantic.BaseModel):
    """The payload of a task that does nothing."""

    number: int = 0


def main() -> None:
    """Boot, say ready, wait for the word, consume until TERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["outbox", "dramatiq"])
    parser.add_argument("--database-url", default="")
    parser.add_argument("--redis-url", required=True)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--ahead", type=int, default=64)
    parser.add_argument("--latency-key", default="")
    args = parser.parse_args()
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    run_outbox(args, stopping) if args.mode == "outbox" else run_dramatiq(args, stopping)


def say_ready_and_wait() -> None:
    """Tell the parent that everything is imported and built."""
    print("ready", flush=True)
    sys.stdin.readline()


def run_outbox(args: argparse.Namespace, stopping: threading.Event) -> None:
    """Consume the outbox's queue."""
    import time

    import redis
    import sqlalchemy as sa

    from shared.outbox import Execution, OutboxSettings
    from shared.outbox.outbox import Outbox

    engine = sa.create_engine(args.database_url, pool_size=10)
    outbox = Outbox(
        engine,
        args.redis_url,
        namespace="bench",
        settings=OutboxSettings(fetch_ahead_max=args.ahead),
    )
    client = redis.Redis.from_url(args.redis_url)

    @outbox.task("bench.nothing", payload=Nothing)
    def nothing(_execution: Execution, payload: Nothing) -> None:
        if args.latency_key:
            client.rpush(args.latency_key, f"{payload.number}:{time.time()}")

    say_ready_and_wait()
    outbox.start_worker(threads=args.threads)
    stopping.wait()
    outbox.drain(5)
    outbox.close(5)


def run_dramatiq(args: argparse.Namespace, stopping: threading.Event) -> None:
    """Consume a plain Dramatiq queue on Redis, as Dramatiq comes."""
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    broker = RedisBroker(url=args.redis_url)
    dramatiq.set_broker(broker)

    @dramatiq.actor(queue_name="plain", actor_name="plain")
    def plain(number: int) -> None:
        """Do nothing."""

    say_ready_and_wait()
    broker.emit_after("process_boot")
    worker = dramatiq.Worker(broker, worker_threads=args.threads)
    worker.start()
    stopping.wait()
    worker.stop(timeout=5000)
    os._exit(0)


if __name__ == "__main__":
    main()
