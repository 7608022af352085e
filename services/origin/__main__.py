"""The process of the origin queue: composition root."""

from __future__ import annotations

import sys

from services.origin import actors
from services.origin.deps import Deps
from services.origin.hosts import Hosts
from shared.runtime.assembly import Parts
from shared.runtime.fetching import fetch_limits, open_fetcher
from shared.runtime.worker import run_worker


def main() -> int:
    """Run until a signal; returns the exit code."""
    return run_worker(actors.QUEUE, _register)


def _register(parts: Parts) -> None:
    settings = parts.settings
    actors.register(
        parts.outbox,
        parts.catalogue,
        Deps(
            db=parts.outbox.context.db,
            catalogue=parts.catalogue,
            staging=parts.staging,
            secrets=parts.secrets,
            fetcher=open_fetcher(settings),
            limits=fetch_limits(settings),
            # Half of the threads at most for one bucket at one host: others have room beside it.
            hosts=Hosts(per_host=max(1, settings.worker.threads // 2), shares=parts.shares),
            resources=parts.outbox.resources,
            max_running=settings.origin.max_running,
            max_bytes=settings.api.max_object_bytes,
            reserve_bytes=settings.staging.min_free_bytes,
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
