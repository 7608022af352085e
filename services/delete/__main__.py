"""The process of the delete queue: composition root."""

from __future__ import annotations

import sys

from services.delete import actors
from services.delete.handlers import Deps
from services.delete.prefix import PrefixDeps
from shared.runtime.assembly import Parts
from shared.runtime.worker import run_worker


def main() -> int:
    """Run until a signal; returns the exit code."""
    return run_worker(actors.QUEUE, _register)


def _register(parts: Parts) -> None:
    actors.register(
        parts.outbox,
        parts.catalogue,
        Deps(db=parts.outbox.context.db, channels=parts.channels, slots=parts.slots),
        PrefixDeps(db=parts.outbox.context.db, catalogue=parts.catalogue, staging=parts.staging),
    )


if __name__ == "__main__":
    sys.exit(main())
