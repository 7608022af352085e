"""What the scenes of the demo share: the running stack, a client, the files, the screen."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.cli.demo.client import Client
from services.cli.demo.profile import MIB
from services.cli.demo.screen import Screen
from services.cli.supervisor import EmbeddedStack

TENANT = "demo"
BUCKET = "files"
REVIEWED = "reviewed"
SCOPES = [
    "objects:read",
    "objects:write",
    "buckets:read",
    "buckets:write",
    "tasks:read",
    "tasks:write",
    "reviews:read",
    "reviews:write",
]
_ROOT = Path(__file__).resolve().parents[3]
#: Source files that are put as they are: real input that every checkout has.
_SOURCES = ("shared/outbox/claim.py", "shared/outbox/states.py", "services/cli/demo/world.py")


@dataclass(slots=True)
class World:
    """One run of the demo."""

    stack: EmbeddedStack
    screen: Screen
    client: Client
    sources: Path
    given: Sequence[Path]
    #: What was put under which key of the bucket, to compare and to delete.
    stored: dict[str, Path] = field(default_factory=dict)

    def make_file(self, name: str, size: int) -> Path:
        """Make a file of random bytes, in pieces."""
        path = self.sources / name
        with path.open("wb") as file:
            for start in range(0, size, MIB):
                file.write(os.urandom(min(MIB, size - start)))
        return path

    def ordinary_files(self) -> dict[str, Path]:
        """Return the files of the first scene by their key: small, large, sources, given ones."""
        files = {
            "1-KiB.bin": self.make_file("1-KiB.bin", 1024),
            "5-MiB.bin": self.make_file("5-MiB.bin", 5 * MIB),
        }
        files |= {f"source/{Path(name).name}": _ROOT / name for name in _SOURCES}
        files |= {f"given/{number}-{path.name}": path for number, path in enumerate(self.given)}
        return files

    def channel_root(self, name: str) -> Path:
        """Return the folder that is a channel."""
        return self.stack.layout.channels / name

    def channel_bytes(self) -> int:
        """Return the bytes that lie on both channels, parts of unfinished uploads as well."""
        return sum(
            path.stat().st_size
            for name in ("first", "second")
            for path in self.channel_root(name).rglob("*")
            # The marker by which a channel knows its own folder is not content.
            if path.is_file() and path.name != ".channel"
        )

    def process_of(self, owner: str) -> str | None:
        """Return the name of the process that an owner stands for."""
        # An owner is host-pid-random:claim.
        pids = {str(pid): name for name, pid in self.stack.pids().items()}
        for part in owner.partition(":")[0].split("-"):
            if part in pids:
                return pids[part]
        return None


def open_world(
    stack: EmbeddedStack, screen: Screen, *, sources: Path, given: Sequence[Path]
) -> World:
    """Make the tenant, its key and its two buckets through the API."""
    admin = Client(stack.api_url, stack.admin_key)
    admin.json("POST", "/tenants", {"id": TENANT, "name": "The demo"})
    key: dict[str, Any] = admin.json("POST", f"/tenants/{TENANT}/keys", {"scopes": SCOPES})
    admin.close()
    client = Client(stack.api_url, str(key["secret"]))
    client.json("PUT", f"/buckets/{BUCKET}", {"channels": ["first", "second"]})
    policy = {"reject_keywords": ["contraband"], "max_bytes": 64 * MIB}
    client.json("PUT", f"/buckets/{REVIEWED}", {"channels": ["second"], "review_policy": policy})
    return World(stack, screen, client, sources, given)
