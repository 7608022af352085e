"""Run the benchmarks, print the measured against the promised: `python -m bench [NAME ...]`.

Exits with 1 when a figure misses its target.
"""

from __future__ import annotations

import importlib
import platform
import sys
import time

NAMES = ("drain", "backlog", "enqueue", "idle", "fill", "ingest", "large", "copying", "chain")


def main(names: list[str]) -> int:
    """Run the named ones, or all."""
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; there are: {', '.join(NAMES)}")
        return 2
    print(f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}")
    missed = 0
    for name in names or NAMES:
        start = time.perf_counter()
        for line in importlib.import_module(f"bench.{name}").run():
            missed += not line.holds
            mark = "ok  " if line.holds else "MISS"
            print(f"{mark} {line.what}: {line.value}, target {line.target}", flush=True)
        print(f"     ({name}: {time.perf_counter() - start:.0f} s)", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
