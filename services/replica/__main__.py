"""The process of the replica queue: composition root."""

from __future__ import annotations

import sys

from services.replica import actors
from services.replica.handlers import Deps
from shared.runtime.assembly import Parts
from shared.runtime.worker import run_worker


def main() -> int:
    """Run until a signal; returns the exit code."""
    return run_worker(actors.QUEUE, _register)


def _register(parts: Parts) -> None:
    deps = Deps(
        db=parts.outbox.context.db,
        catalogue=parts.catalogue,
        channels=parts.channels,
        slots=parts.slots,
    )
    actors.register(parts.outbox, parts.catalogue, deps)


if __name__ == "__main__":
    sys.exit(main())
