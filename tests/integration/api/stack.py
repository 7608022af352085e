"""The real application for a test: on a database, a Redis, a staging folder and file channels."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import sqlalchemy as sa
from sqlalchemy.orm import Session

from services.api.app import create_app
from services.api.deps import ApiDeps
from shared.catalog.accounts import SCOPES, create_key, ensure_tenant
from shared.catalog.buckets import BucketSpec, put_bucket
from shared.catalog.channel_catalogue import ChannelCatalogue
from shared.catalog.channels import ChannelInput, put_channel
from shared.catalog.kinds import register_kinds
from shared.catalog.review_policy import ReviewPolicy
from shared.catalog.secret_box import SecretBox
from shared.core.clock import Deadline
from shared.fetch import Fetcher, FetchPolicy
from shared.outbox.outbox import Outbox
from shared.runtime.database import build_engine
from shared.runtime.settings import ApiSettings, Settings
from shared.storage.file import FileChannel
from shared.storage.registry import prepare_channel
from shared.storage.spec import ChannelSpec
from shared.storage.staging import Staging
from tests.integration.api.serving import Address, serving

TENANT, OTHER = "acme", "umbrella"
BUCKET = "photos"
CHANNEL = "disk-1"


@dataclass(frozen=True)
class Stack:
    """The parts of the running application, and how to speak to it."""

    deps: ApiDeps
    engine: sa.Engine
    address: Address
    staging_root: Path
    channel_root: Path

    def client(self, *scopes: str, tenant: str = TENANT) -> httpx.Client:
        """Return a client with a key of these scopes, of all but `admin` when none is named."""
        chosen = scopes or tuple(SCOPES - {"admin"})
        with Session(self.engine) as session, session.begin():
            secret = create_key(session, tenant, scopes=chosen, label="test").secret
        return httpx.Client(
            base_url=f"{self.address.url}/v1",
            headers={"authorization": f"Bearer {secret}"},
            timeout=30,
        )

    def secret(self) -> str:
        """Return a bearer secret with every scope but `admin`."""
        with Session(self.engine) as session, session.begin():
            chosen = tuple(SCOPES - {"admin"})
            return create_key(session, TENANT, scopes=chosen, label="raw").secret

    def make_bucket(self, name: str, *, tenant: str = TENANT, **rules: Any) -> None:
        with Session(self.engine) as session, session.begin():
            put_bucket(session, tenant, name, BucketSpec(channels=[CHANNEL], **rules))

    def make_reviewed_bucket(self, name: str, policy: ReviewPolicy | None = None) -> None:
        self.make_bucket(name, review_policy=policy or ReviewPolicy())

    def count(self, table: str) -> int:
        with self.engine.connect() as connection:
            return int(connection.execute(sa.text(f"SELECT COUNT(*) FROM {table}")).scalar_one())

    def staged_files(self) -> list[Path]:
        """Return every file that a body has left in staging, finished or not."""
        return sorted(
            path
            for path in self.staging_root.rglob("*")
            if path.is_file() and path.name != ".channel"
        )

    def is_untouched(self) -> bool:
        """Tell whether nothing was stored: no row that a write leaves, and no file."""
        tables = ("objects", "versions", "blobs", "blob_refs", "tasks", "reviews")
        return not any(map(self.count, tables)) and not self.staged_files()


@contextlib.contextmanager
def running_stack(
    database_url: str, redis_url: str, namespace: str, root: Path, **limits: Any
) -> Iterator[Stack]:
    """Run the application with two tenants, a channel, a bucket; `limits` are of ApiSettings."""
    switched_off = limits.pop("switched_off", frozenset())
    min_free_bytes, clock = limits.pop("min_free_bytes", 0), limits.pop("clock", time.time)
    settings = Settings(
        database_url=database_url,
        redis_url=redis_url,
        namespace=namespace,
        api=ApiSettings(**{"threads": 8, "body_idle_seconds": 10.0, **limits}),
    )
    engine = build_engine(settings, threads=settings.api.threads)
    outbox = Outbox(engine, redis_url, namespace=namespace)
    channel_root, staging_root = root / CHANNEL, root / "staging"
    spec = ChannelSpec(CHANNEL, "file", {"root": str(channel_root)})
    prepare_channel(spec, deadline=Deadline(10))
    staging = Staging(FileChannel(staging_root, name="staging"))
    staging.prepare(deadline=Deadline(10))
    secrets = SecretBox(SecretBox.generate_key())
    deps = ApiDeps(
        database=outbox.context.db,
        outbox=outbox,
        catalogue=register_kinds(outbox, grace_seconds=0, switched_off=switched_off),
        staging=staging,
        channels=ChannelCatalogue(engine, secrets),
        secrets=secrets,
        settings=settings.api,
        min_free_bytes=min_free_bytes,
        clock=clock,
        fetch=Fetcher(FetchPolicy(allow=["127.0.0.0/8:*"])),
    )
    with Session(engine) as session, session.begin():
        put_channel(
            session,
            ChannelInput(name=CHANNEL, kind="file", settings=spec.settings),
            secrets=secrets,
        )
        for tenant in (TENANT, OTHER):
            ensure_tenant(session, tenant)
            put_bucket(session, tenant, BUCKET, BucketSpec(channels=[CHANNEL]))
    outbox.start_producer()
    try:
        app = create_app(deps)
        with serving(app, max_header_bytes=settings.api.max_header_bytes) as address:
            yield Stack(deps, engine, address, staging_root, channel_root)
    finally:
        outbox.close()
        engine.dispose()
