from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
import resource
from shared.runtime.descriptors import raise_limit
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (100, min(hard, {hard})))
print(raise_limit(), raise_limit())
"""


def test_limit_is_raised_as_far_as_it_goes() -> None:
    """In a process of its own: a hard limit never comes back."""
    for hard in (200, 3000):
        ran = subprocess.run(
            [sys.executable, "-c", CODE.format(hard=hard)],
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            check=True,
        )
        assert ran.stdout.split() == [str(hard), str(hard)]
