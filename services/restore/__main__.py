"""The process of the restore queue: composition root."""

from __future__ import annotations

import sys

from services.restore import actors
from services.restore.handlers import Deps
from shared.runtime.assembly import Parts
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
            channels=parts.channels,
            staging=parts.staging,
            slots=parts.slots,
            reserve_bytes=parts.settings.staging.min_free_bytes,
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
