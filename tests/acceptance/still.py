"""A stack that was stopped in the middle of its life: something of everything, and nobody at work.

Damage planted in it stays until `restore` puts back rows, objects and staging files.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from services.cli.supervisor import EmbeddedStack
from shared.catalog.models import Base
from shared.outbox.schema import metadata
from shared.storage.channel import Channel
from tests.acceptance.product import PATIENCE, Tenant, random_bytes
from tests.support.content import put, read, soon
from tests.support.eventually import eventually

TABLES = [*metadata.sorted_tables, *Base.metadata.sorted_tables]
POLICY = {"reject_keywords": ["contraband"], "doubtful_keywords": ["perhaps"]}
LETTER = b"A letter about the weather."


@dataclass(frozen=True, slots=True)
class Cast:
    """The ids of what is there to be damaged; versions, but for the tasks."""

    kept: int
    replaced: int
    changed: int
    superseded: int
    waiting: int
    given_up: int
    letter: int
    copy: int
    doubtful: int
    blocked: int
    upload_task: int
    waiting_task: int
    cancelled_task: int


def live(stack: EmbeddedStack) -> Cast:
    """Put something of everything through a running stack and leave some of it undone."""
    tenant = Tenant(stack)
    with tenant.http:
        tenant.bucket("files")
        tenant.bucket("reviewed", review_policy=POLICY)
        kept = tenant.put("files/kept", random_bytes(3000))
        replaced = tenant.put("files/changed", random_bytes(2000))
        tenant.ended(kept["task_id"])
        tenant.ended(replaced["task_id"])
        changed = tenant.put("files/changed", random_bytes(2500))
        tenant.ended(changed["task_id"])
        tenant.store("files/gone", random_bytes(1000))
        tenant.delete("files/gone")
        judged = {}
        for key, text in (
            ("letter", LETTER),
            ("doubtful", b"perhaps this"),
            ("blocked", b"contraband"),
        ):
            judged[key] = tenant.put(f"reviewed/{key}", text, "text/plain")
            tenant.ended(judged[key]["task_id"])
        eventually(lambda: tenant.state("reviewed/letter") == "stored", PATIENCE)
        copy = tenant.put("reviewed/copy", LETTER, "text/plain")
        assert copy["state"] == "stored"
        upload_in_parts(tenant, "parts/done", [random_bytes(600), random_bytes(500)])
        upload_in_parts(tenant, "parts/failed", [random_bytes(400)], sha256="0" * 64)
        stack.stop_process("upload")
        upload_in_parts(tenant, "parts/open", [random_bytes(300), random_bytes(200)], until="open")
        upload_in_parts(tenant, "parts/waiting", [random_bytes(100)], until="completing")
        superseded = tenant.put("files/waiting", random_bytes(1000))
        waiting = tenant.put("files/waiting", random_bytes(1100))
        given_up = tenant.put("files/given-up", random_bytes(1200))
        tenant.http.post(f"/tasks/{given_up['task_id']}:cancel").raise_for_status()
        return Cast(
            kept=kept["version_id"],
            replaced=replaced["version_id"],
            changed=changed["version_id"],
            superseded=superseded["version_id"],
            waiting=waiting["version_id"],
            given_up=given_up["version_id"],
            letter=judged["letter"]["version_id"],
            copy=copy["version_id"],
            doubtful=judged["doubtful"]["version_id"],
            blocked=judged["blocked"]["version_id"],
            upload_task=kept["task_id"],
            waiting_task=waiting["task_id"],
            cancelled_task=given_up["task_id"],
        )


def upload_in_parts(
    tenant: Tenant, key: str, contents: Sequence[bytes], *, until: str = "", **more: Any
) -> None:
    """Upload in parts, up to a state; by default until it is over."""
    order = {"operation_id": key, "bucket": "files", "key": key, **more}
    upload = tenant.http.post("/uploads", json=order).raise_for_status().json()["id"]
    for number, content in enumerate(contents, start=1):
        tenant.http.put(f"/uploads/{upload}/parts/{number}", content=content).raise_for_status()
    if until != "open":
        tenant.http.post(f"/uploads/{upload}:complete").raise_for_status()

    def state() -> str:
        return str(tenant.http.get(f"/uploads/{upload}").json()["state"])

    wanted = {until} if until else {"done", "failed"}
    eventually(lambda: state() in wanted, PATIENCE, message=f"{key} becomes {wanted}")


class Still:
    """The stopped stack. `variables` are the settings of commands that look at it."""

    def __init__(
        self,
        cast: Cast,
        engine: sa.Engine,
        channel: Channel,
        staging: Path,
        variables: Mapping[str, str],
    ) -> None:
        self.cast = cast
        self.engine = engine
        self.channel = channel
        self.staging = staging
        self.variables = dict(variables)
        self._forget_superseded()
        self._rows = self._read_rows()
        self._objects = {key: read(channel, key) for key in self._keys()}
        self._files = {path: path.read_bytes() for path in self.staged_files()}

    # -- looking ---------------------------------------------------------------------------

    def one(self, column: Any, where: sa.ColumnElement[bool]) -> Any:
        """Return one value of the first row that fits."""
        with self.engine.connect() as connection:
            return connection.execute(sa.select(column).where(where)).scalars().first()

    def location(self, version_id: int) -> Any:
        """Return the stored location of a version, as a row."""
        query = sa.text(
            "SELECT locations.* FROM locations JOIN versions "
            "ON versions.blob_id = locations.blob_id "
            "WHERE versions.id = :version AND locations.state = 'stored'"
        )
        with self.engine.connect() as connection:
            return connection.execute(query, {"version": version_id}).one()

    def staged_files(self) -> list[Path]:
        """Return the files in staging, without the marker."""
        return sorted(
            path for path in self.staging.rglob("*") if path.is_file() and path.name != ".channel"
        )

    def content(self, version_id: int) -> bytes:
        """Return the bytes of a stored version."""
        return read(self.channel, self.location(version_id).physical_key)

    # -- damaging --------------------------------------------------------------------------

    def change(self, table: sa.Table | type[Base], row_id: int | str, **values: Any) -> None:
        """Overwrite columns of one row."""
        target = _table(table)
        with self.engine.begin() as connection:
            done = connection.execute(
                sa.update(target).where(_key(target) == row_id).values(**values)
            )
            assert done.rowcount == 1, f"{target.name} {row_id}"

    def add(self, table: sa.Table | type[Base], **values: Any) -> None:
        """Insert a row."""
        with self.engine.begin() as connection:
            connection.execute(sa.insert(_table(table)).values(**values))

    def drop(self, table: sa.Table | type[Base], where: sa.ColumnElement[bool]) -> None:
        """Delete rows, of which there must be some."""
        with self.engine.begin() as connection:
            assert connection.execute(sa.delete(_table(table)).where(where)).rowcount

    def copy(self, table: sa.Table | type[Base], row_id: int, **values: Any) -> None:
        """Insert a row's double with other values."""
        target = _table(table)
        columns = [column for column in target.columns if column.computed is None]
        with self.engine.begin() as connection:
            row = connection.execute(sa.select(*columns).where(target.c.id == row_id)).one()
            double = {k: v for k, v in row._mapping.items() if k != "id"}
            connection.execute(sa.insert(target).values({**double, **values}))

    @contextlib.contextmanager
    def without_index(self, name: str) -> Iterator[None]:
        """Take a unique index away: damage that the database itself keeps out."""
        index = next(one for table in TABLES for one in table.indexes if one.name == name)
        index.drop(self.engine)
        try:
            yield
        finally:
            self.restore()
            index.create(self.engine)

    def put(self, key: str, content: bytes) -> None:
        """Write an object past the catalogue."""
        put(self.channel, key, content)

    # -- putting back ----------------------------------------------------------------------

    def restore(self) -> None:
        """Put everything back as it was."""
        with self.engine.begin() as connection:
            for table in TABLES:
                connection.execute(sa.delete(table))
                if rows := self._rows[table.name]:
                    connection.execute(sa.insert(table), rows)
        for upload in list(self.channel.list_uploads(deadline=soon())):
            self.channel.abort_upload(upload.key, upload.upload_id, deadline=soon())
        found = self._keys()
        for key in found - set(self._objects):
            self.channel.delete(key, deadline=soon())
        for key, content in self._objects.items():
            if key not in found or read(self.channel, key) != content:
                self.put(key, content)
        for path in set(self.staged_files()) - set(self._files):
            path.unlink()
        for path, content in self._files.items():
            path.write_bytes(content)

    def _forget_superseded(self) -> None:
        """Remove what a superseded PUT left in staging, as the sweep does in its time."""
        rows = self._read_rows()
        named = [
            row["staging_key"]
            for row in (*rows["versions"], *rows["upload_parts"])
            if row["staging_key"]
        ]
        for path in self.staged_files():
            if not str(path).endswith(tuple(named)):
                path.unlink()

    def _keys(self) -> set[str]:
        return {entry.key for entry in self.channel.list(deadline=soon())}

    def _read_rows(self) -> dict[str, list[dict[str, Any]]]:
        with self.engine.connect() as connection:
            return {
                table.name: [
                    dict(row)
                    for row in connection.execute(
                        sa.select(*(c for c in table.columns if c.computed is None))
                    ).mappings()
                ]
                for table in TABLES
            }


def _table(table: sa.Table | type[Base]) -> sa.Table:
    found = table if isinstance(table, sa.Table) else table.__table__
    assert isinstance(found, sa.Table)
    return found


def _key(table: sa.Table) -> sa.Column[Any]:
    return next(itertools.chain(table.primary_key.columns))
