"""A scheduler's process that makes one run of the expiry and dies at a failpoint.

`python -m tests.support.crash_expiry DATABASE_URL STAGING FAILPOINT`: SIGKILL at the point.
"""

from __future__ import annotations

import sys
from pathlib import Path

from services.scheduler.expiry import ObjectExpiry
from shared.core.clock import Deadline
from shared.core.failpoints import arm
from shared.storage.file import FileChannel
from shared.storage.staging import Staging
from tests.support.catalogue import World
from tests.support.logs import plain_logs


def main() -> None:
    """Make the run."""
    url, staging, failpoint = sys.argv[1:]
    world = World(url)
    job = ObjectExpiry(
        db=world.db,
        catalogue=world.catalogue,
        staging=Staging(FileChannel(Path(staging), name="staging")),
    )
    arm(f"{failpoint}=kill")
    job.run_once(deadline=Deadline(30), check=lambda: None)


if __name__ == "__main__":
    plain_logs()
    main()
