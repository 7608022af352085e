"""Copies files between channels as the copying services do, for `bench.copying`.

Reads its order as JSON, says `ready`, and copies all of it each time that it is told a prefix.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from shared.core.clock import Deadline
from shared.runtime.memory import give_back_large_buffers
from shared.storage import Channels, ChannelSource, ChannelSpec, transfer

_PATIENCE_SECONDS = 600.0


def main(order: dict[str, Any]) -> None:
    """Copy what the order names from channel to channel, so many at a time."""
    give_back_large_buffers()
    channels = Channels()
    source = channels.open(ChannelSpec(**order["source"])).channel
    opened = channels.open(ChannelSpec(**order["target"]))
    is_by_server = order["is_by_server"]

    def copy(prefix: str, key: str, size: int, sha256: str, md5: str | None) -> None:
        transfer(
            ChannelSource(source, key),
            opened,
            f"{prefix}/{key}",
            size=size,
            sha256=sha256,
            remote=source.remote(key) if is_by_server else None,
            md5=md5 if is_by_server else None,
            deadline=Deadline(_PATIENCE_SECONDS),
        )

    with ThreadPoolExecutor(order["transfers"]) as pool:
        print("ready", flush=True)
        for line in sys.stdin:
            prefix = line.strip()
            copies = [pool.submit(copy, prefix, *file) for file in order["files"]]
            for one in copies:
                one.result()
            print("done", flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
