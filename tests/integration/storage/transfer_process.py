"""A transfer in a process of its own, to be killed: `python -m ... ORDER.json`.

The order names source, target, key and limits. Progress is written to a file as a checkpoint would
be; the result goes to standard output.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from shared.core.clock import Deadline
from shared.core.failpoints import arm
from shared.storage.faulty import FaultyChannel
from shared.storage.file import FileChannel
from shared.storage.progress import Progress
from shared.storage.registry import OpenChannel, open_channel
from shared.storage.source import ChannelSource
from shared.storage.spec import ChannelSpec, read_tuning
from shared.storage.transfer import transfer
from tests.support.logs import plain_logs


def main(order_path: Path) -> None:
    order = json.loads(order_path.read_text())
    checkpoint = Path(order["checkpoint"])
    arm(order["failpoints"])
    spec = ChannelSpec(**order["spec"])
    counted = FaultyChannel(open_channel(spec))

    def save(progress: Progress) -> None:
        fresh = checkpoint.with_suffix(".new")
        fresh.write_text(json.dumps(progress.to_json()))
        fresh.replace(checkpoint)

    resume = Progress.from_json(json.loads(checkpoint.read_text())) if order["resume"] else None
    done = transfer(
        ChannelSource(FileChannel(order["source"], name="source"), "from"),
        OpenChannel.around(counted, read_tuning(spec)),
        order["key"],
        size=order["size"],
        sha256=order["sha256"],
        resume=resume,
        save=save,
        deadline=Deadline(100),
    )
    print(json.dumps({**asdict(done), "calls": counted.calls, "pid": os.getpid()}))


if __name__ == "__main__":
    plain_logs()
    main(Path(sys.argv[1]))
