"""What the demo needs of the machine, and the short times it runs the stack with."""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil

MIB = 1024 * 1024

#: Bytes on disk at the busiest moment: sources, staging and channels with the large file.
DISK_BYTES = 1_200_000_000
MEMORY_BYTES = 1_500_000_000

#: The processes of what it shows.
WORKERS = {"upload": 2, "review": 1, "delete": 1}
LEASE_SECONDS = 4.0
GRACE_SECONDS = 2.0
PART_BYTES = 8 * MIB
#: A real setting of the first channel, so that a kill meets the middle of the large file.
BANDWIDTH_BYTES_PER_SECOND = 40 * MIB
#: The same of the second channel, so that a cancel meets a running task.
SECOND_BANDWIDTH_BYTES_PER_SECOND = 80 * MIB


def variables() -> dict[str, str]:
    """Return the settings of the demo's stack."""
    return {
        "BLOX_OUTBOX__LEASE_SECONDS": str(LEASE_SECONDS),
        "BLOX_OUTBOX__RENEW_SECONDS": "1.0",
        "BLOX_OUTBOX__SCAN_SECONDS": "0.5",
        "BLOX_OUTBOX__RECOVERY_MIN_SECONDS": "0.1",
        "BLOX_OUTBOX__RECOVERY_MAX_SECONDS": "0.5",
        "BLOX_GRACE_SECONDS": str(GRACE_SECONDS),
        # What a cancelled upload leaves on a channel is swept within seconds, not within an hour.
        "BLOX_SCHEDULER__CLEANUP_SECONDS": "1.0",
        "BLOX_SWEEPS__MIN_AGE_SECONDS": "1.0",
        "BLOX_SWEEPS__TOMBSTONE_SECONDS": "0",
        "BLOX_SHUTDOWN_SECONDS": "10",
        "BLOX_LOG__FORMAT": "json",
        "BLOX_STAGING__MIN_FREE_BYTES": "0",
        "BLOX_CHANNELS__FIRST__KIND": "file",
        "BLOX_CHANNELS__FIRST__BANDWIDTH_BYTES_PER_SECOND": str(BANDWIDTH_BYTES_PER_SECOND),
        "BLOX_CHANNELS__FIRST__PART_BYTES": str(PART_BYTES),
        "BLOX_CHANNELS__SECOND__KIND": "file",
        "BLOX_CHANNELS__SECOND__BANDWIDTH_BYTES_PER_SECOND": str(SECOND_BANDWIDTH_BYTES_PER_SECOND),
        "BLOX_CHANNELS__SECOND__PART_BYTES": str(PART_BYTES),
    }


def shortages(
    directory: Path, *, disk_bytes: int = DISK_BYTES, memory_bytes: int = MEMORY_BYTES
) -> list[str]:
    """Say what the machine lacks for the demo; empty when it has enough."""
    found = []
    free_disk = shutil.disk_usage(directory).free
    if free_disk < disk_bytes:
        found.append(
            f"{directory} has {free_disk / 1e9:.1f} GB free, "
            f"the demo needs {disk_bytes / 1e9:.1f} GB"
        )
    free_memory = psutil.virtual_memory().available
    if free_memory < memory_bytes:
        found.append(
            f"{free_memory / 1e9:.1f} GB of memory are free, the demo needs "
            f"{memory_bytes / 1e9:.1f} GB"
        )
    return found
