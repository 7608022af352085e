"""The process of the review queue: composition root."""

from __future__ import annotations

import sys

from services.review import actors
from services.review.deps import Deps, Outside
from services.review.sandbox import SandboxLimits
from shared.runtime.assembly import Parts
from shared.runtime.fetching import open_fetcher
from shared.runtime.worker import run_worker


def main() -> int:
    """Run until a signal; returns the exit code."""
    return run_worker(actors.QUEUE, _register)


def _register(parts: Parts) -> None:
    review = parts.settings.review
    actors.register(
        parts.outbox,
        parts.catalogue,
        Deps(
            db=parts.outbox.context.db,
            catalogue=parts.catalogue,
            staging=parts.staging,
            channels=parts.channels,
            outside=Outside(
                fetch=open_fetcher(parts.settings),
                secrets=parts.secrets,
                callback_base=review.callback_url,
            ),
            clamd=review.clamd,
            limits=SandboxLimits(
                seconds=review.sandbox_seconds,
                cpu_seconds=review.sandbox_cpu_seconds,
                memory_bytes=review.sandbox_memory_bytes,
            ),
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
