"""A Celery worker for the latency comparison: `python -m bench.celery_worker REDIS_URL`."""

from __future__ import annotations

import sys
import time
from typing import Any

import redis


def make_app(redis_url: str) -> Any:
    """Return a Celery app without results, on the given Redis."""
    from celery import Celery

    app = Celery("bench", broker=redis_url)
    app.conf.task_ignore_result = True
    app.conf.worker_hijack_root_logger = False
    app.conf.task_default_queue = "celery-queue"
    return app


def main() -> None:
    """Run a worker with eight threads."""
    redis_url = sys.argv[1]
    app = make_app(redis_url)
    client = redis.Redis.from_url(redis_url)

    @app.task(name="bench.rare")
    def rare(sent_at: float) -> None:
        client.rpush("celery-latency", time.time() - sent_at)
        client.rpush("celery-booted", 1)

    app.worker_main(["worker", "--pool=threads", "--concurrency=8", "--loglevel=ERROR"])


if __name__ == "__main__":
    main()
