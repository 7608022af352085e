"""A process that claims one task, runs its handler and dies at a failpoint.

`python -m tests.support.crash DATABASE_URL ROOT TASK_ID FAILPOINT`: SIGKILL at the point, exit code
0 when the handler never passed it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from shared.core.failpoints import arm
from tests.support.handlers import Stand
from tests.support.logs import plain_logs

ROOT = Path(__file__).resolve().parent.parent.parent


def crash(url: str, root: Path, task_id: int, failpoint: str) -> int:
    """Run the process to its end; returns its exit code, -9 when it died at the point."""
    command = [sys.executable, "-m", "tests.support.crash", url, str(root), str(task_id), failpoint]
    return subprocess.run(command, cwd=ROOT, timeout=60, check=False).returncode


def main() -> None:
    """Run one task."""
    url, root, task_id, failpoint = sys.argv[1:]
    stand = Stand(url, Path(root), node="doomed")
    execution = stand.claim(int(task_id))
    arm(f"{failpoint}=kill")
    stand.run(execution)


if __name__ == "__main__":
    plain_logs()
    main()
