"""A process that takes one turn of the job `replica_backup` and dies at a failpoint.

`python -m tests.support.replica_turn DATABASE_URL ROOT FAILPOINT`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from shared.catalog.replicas.job import ReplicaJob
from shared.catalog.replicas.limits import ReplicaLimits
from shared.core.failpoints import arm
from tests.support.crash import ROOT
from tests.support.handlers import Stand
from tests.support.logs import plain_logs


def crash_in_turn(url: str, root: Path, failpoint: str) -> int:
    """Run the process to its end; returns its exit code, -9 when it died at the point."""
    command = [sys.executable, "-m", "tests.support.replica_turn", url, str(root), failpoint]
    return subprocess.run(command, cwd=ROOT, timeout=60, check=False).returncode


def main() -> None:
    """Take one turn."""
    url, root, failpoint = sys.argv[1:]
    stand = Stand(url, Path(root), node="doomed")
    limits = ReplicaLimits(grace_seconds=0.0, retry_seconds=0.0, again_seconds=0.0)
    job = ReplicaJob(stand.db, stand.catalogue, stand.channels, limits)
    arm(f"{failpoint}=kill")
    job.run_once(lambda: None)


if __name__ == "__main__":
    plain_logs()
    main()
