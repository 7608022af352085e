"""The running product as its users meet it: the API, the command line, a foreign S3 client."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import quote

import boto3
import httpx
import sqlalchemy as sa
from botocore.config import Config

from services.cli.supervisor import EmbeddedStack, python_environment
from tests.servers.moto import S3Server
from tests.support.eventually import eventually

#: Seconds that anything may take on a machine that does other work as well.
PATIENCE = 60.0
#: S3's smallest part: larger objects are sent in several.
PART_BYTES = 5 * 1024 * 1024
ENDED = {"completed", "failed", "cancelled"}


@dataclass(frozen=True, slots=True)
class Ran:
    """How one command line ended."""

    code: int
    out: str
    err: str


#: Runs `blox` with settings and arguments.
Blox: TypeAlias = Callable[..., Ran]


def run_blox(variables: Mapping[str, str], *arguments: str) -> Ran:
    """Run `blox` as a process of its own, with these settings and no others."""
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", *arguments],
        env=python_environment(variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def s3_variables(channel: str, server: S3Server, bucket: str, **more: str) -> dict[str, str]:
    """Return the settings that make an S3 bucket a channel."""
    values = {
        "kind": "s3",
        "endpoint": server.endpoint,
        "bucket": bucket,
        "access_key": server.access_key,
        "secret_key": server.secret_key,
        "part_bytes": str(PART_BYTES),
        **more,
    }
    return {f"BLOX_CHANNELS__{channel}__{name}".upper(): value for name, value in values.items()}


def foreign_client(server: S3Server) -> Any:
    """Return somebody else's S3 client."""
    return boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        region_name=server.region,
        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 2}),
    )


class Product:
    """One running stack on real servers. `buckets` maps channels to buckets on the S3 server."""

    def __init__(
        self, stack: EmbeddedStack, server: S3Server, engine: sa.Engine, buckets: dict[str, str]
    ) -> None:
        self.stack = stack
        self.engine = engine
        self.buckets = buckets
        self.s3 = foreign_client(server)

    def blox(self, *arguments: str, **variables: str) -> Ran:
        """Run `blox` on this stack; `variables` replace settings."""
        return run_blox({**self.stack.variables, **variables}, *arguments)

    def keys_on(self, channel: str, tenant: Tenant) -> list[str]:
        """Return the keys of a tenant that the S3 server itself names."""
        pages = self.s3.get_paginator("list_objects_v2").paginate(
            Bucket=self.buckets[channel], Prefix=f"{tenant.name}/"
        )
        return [item["Key"] for page in pages for item in page.get("Contents", ())]

    def content(self, channel: str, key: str) -> bytes:
        """Read an object with the foreign client."""
        body: bytes = self.s3.get_object(Bucket=self.buckets[channel], Key=key)["Body"].read()
        return body

    def count(self, table: str, tenant: Tenant) -> int:
        """Return how many rows of a table are a tenant's."""
        query = sa.text(f"SELECT COUNT(*) FROM {table} WHERE tenant_id = :tenant")
        with self.engine.connect() as connection:
            return int(connection.execute(query, {"tenant": tenant.name}).scalar_one())

    def staged_files(self) -> set[str]:
        """Return every file that lies in staging, finished or not."""
        root = self.stack.layout.staging
        return {
            str(path.relative_to(root))
            for path in root.rglob("*")
            if path.is_file() and path.name != ".channel"
        }


class Tenant:
    """A customer with a key of its own, made through the API; short words for what they do."""

    def __init__(self, stack: EmbeddedStack) -> None:
        self.name = f"t{uuid.uuid4().hex[:10]}"
        with _client(stack, stack.admin_key) as admin:
            admin.post("/tenants", json={"id": self.name}).raise_for_status()
            scopes = [
                f"{what}:{right}"
                for what in ("objects", "buckets", "tasks", "reviews", "backups")
                for right in ("read", "write")
            ]
            order = {"scopes": scopes, "label": "acceptance"}
            key = admin.post(f"/tenants/{self.name}/keys", json=order).raise_for_status().json()
        self.secret = str(key["secret"])
        self.http = _client(stack, self.secret)

    def bucket(self, name: str, *channels: str, **rules: Any) -> None:
        """Make a bucket; on the channel `main` when none is named."""
        order = {"channels": list(channels or ("main",)), **rules}
        self.http.put(f"/buckets/{name}", json=order).raise_for_status()

    def put(self, path: str, content: bytes, content_type: str = "") -> dict[str, Any]:
        """Put `bucket/key` and return the answer."""
        headers = {"content-type": content_type or "application/octet-stream"}
        answer = self.http.put(object_path(path), content=content, headers=headers)
        assert answer.status_code in (200, 201, 202), answer.text
        body: dict[str, Any] = answer.json()
        return body

    def get(self, path: str, **headers: str) -> httpx.Response:
        """Get `bucket/key`."""
        return self.http.get(object_path(path), headers=headers)

    def delete(self, path: str) -> None:
        """Delete `bucket/key`."""
        assert self.http.delete(object_path(path)).status_code == 204

    def state(self, path: str) -> str | None:
        """Return the state of the version that is served, None when none is."""
        answer = self.http.head(object_path(path))
        return answer.headers["x-blox-state"] if answer.status_code == 200 else None

    def task(self, task_id: int) -> dict[str, Any]:
        """Return a task."""
        answer = self.http.get(f"/tasks/{task_id}")
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    def ended(self, task_id: int) -> dict[str, Any]:
        """Wait until a task has ended and return it."""

        def look() -> dict[str, Any] | None:
            task = self.task(task_id)
            return task if task["state"] in ENDED else None

        message = f"task {task_id} ends"
        task = eventually(look, PATIENCE, interval_seconds=0.05, message=message)
        assert task is not None
        return task

    def store(self, path: str, content: bytes, content_type: str = "") -> dict[str, Any]:
        """Put `bucket/key` and wait until it is on its channel; returns the task."""
        task = self.ended(self.put(path, content, content_type)["task_id"])
        assert task["state"] == "completed", task
        return task


def _client(stack: EmbeddedStack, key: str) -> httpx.Client:
    return httpx.Client(
        base_url=f"{stack.api_url}/v1",
        headers={"authorization": f"Bearer {key}"},
        timeout=PATIENCE,
    )


def object_path(path: str) -> str:
    """Return the route of `bucket/key`."""
    bucket, _, key = path.partition("/")
    return f"/buckets/{bucket}/objects/{quote(key)}"


def random_bytes(size: int) -> bytes:
    """Return content that nobody has put before."""
    return os.urandom(size)
