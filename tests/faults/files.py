"""A tenant's files on a ground, and what each of them must read as in the end."""

from __future__ import annotations

from tests.acceptance.product import Tenant, random_bytes
from tests.faults.ground import Ground


class Files:
    """`contents` are what reads must give, by `bucket/key`."""

    def __init__(self, ground: Ground, tenant: Tenant) -> None:
        self._ground, self.tenant = ground, tenant
        self._count = 0
        self.contents: dict[str, bytes] = {}

    def put(self, size: int, bucket: str = "files") -> int:
        """Put new content under a new name; returns the task."""
        self._count += 1
        path = f"{bucket}/{self._count}"
        self.contents[path] = random_bytes(size)
        return int(self.tenant.put(path, self.contents[path])["task_id"])

    def store(self, size: int, bucket: str = "files") -> str:
        """Put and wait until it is on its channel; returns the path."""
        self._ground.need("upload")
        self._ground.completed(self.put(size, bucket))
        return f"{bucket}/{self._count}"

    def clean(self, *services: str) -> None:
        """Wait until all is quiet; then every invariant holds and every file reads as it should.

        Beside those that every test needs, these services are there to do what is left.
        """
        self._ground.need("api", "scheduler", "upload", "delete", *services)
        self._ground.clean()
        for path, content in self.contents.items():
            assert self.tenant.get(path).content == content, path
