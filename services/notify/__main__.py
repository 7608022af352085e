"""The process of the notify queue: composition root."""

from __future__ import annotations

import sys

from services.notify import actors
from services.notify.handlers import Deps
from services.notify.turns import Turns
from shared.runtime.assembly import Parts
from shared.runtime.fetching import open_fetcher
from shared.runtime.worker import run_worker


def main() -> int:
    """Run until a signal; returns the exit code."""
    return run_worker(actors.QUEUE, _register)


def _register(parts: Parts) -> None:
    actors.register(
        parts.outbox,
        parts.catalogue,
        Deps(
            db=parts.outbox.context.db,
            catalogue=parts.catalogue,
            secrets=parts.secrets,
            fetcher=open_fetcher(parts.settings),
            turns=Turns(parts.settings.worker.threads),
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
