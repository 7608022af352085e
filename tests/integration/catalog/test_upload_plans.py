"""Uploads in parts lock the rows that are meant and no others, also among few rows."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import Bucket, SessionState, UploadSession, utc_now
from shared.catalog.payloads import AssembleUpload
from shared.catalog.sweeps import ends
from shared.catalog.sweeps.staging import named
from shared.catalog.uploading.arriving import end_arriving, end_arriving_under, is_arriving
from shared.catalog.uploading.assembly import read_assembly
from shared.catalog.uploading.completing import complete_session
from shared.catalog.uploading.lists import find_operation, list_sessions
from shared.catalog.uploading.parts import StagedPart, put_part
from shared.catalog.uploading.removal import (
    expired_sessions,
    forget_results,
    give_up_open,
    homeless_sessions,
)
from shared.catalog.uploading.rules import CompleteOrder, SessionSpec
from shared.catalog.uploading.sessions import abort_session, begin_session, find_session
from shared.core.ids import new_id
from tests.support.catalogue import TENANT, World
from tests.support.uploads import LIMITS

pytestmark = pytest.mark.databases("mariadb")


def begin(world: World, bucket: int, operation: str) -> UploadSession:
    spec = SessionSpec(operation_id=operation, key=operation, content_type="text/plain")
    return world.run(
        lambda session: begin_session(session, session.get_one(Bucket, bucket), spec, LIMITS).row
    )


def put(world: World, upload: UploadSession, number: int) -> None:
    part = StagedPart(number=number, staging_key=new_id(), size=9, sha256="0" * 64, md5="0" * 32)
    world.run(lambda session: put_part(session, TENANT, upload.public_id, part, LIMITS))


def complete(world: World, upload: UploadSession) -> UploadSession:
    return world.run(
        lambda session: complete_session(
            session,
            world.catalogue,
            TENANT,
            upload.public_id,
            CompleteOrder(),
            min_part_bytes=1,
        )
    ).row


def test_no_statement_scans_or_sorts(world: World, bucket: int) -> None:
    for number in range(30):
        upload = begin(world, bucket, f"old-{number}")
        put(world, upload, 1)
        put(world, upload, 2)
    with world.engine.connect() as connection:
        for table in ("upload_sessions", "upload_parts"):
            connection.exec_driver_sql(f"ANALYZE TABLE {table}").all()
    seen: list[tuple[str, Any]] = []
    sa.event.listen(
        world.engine, "before_cursor_execute", lambda *args: seen.append((args[2], args[3]))
    )
    upload = begin(world, bucket, "new")
    begin(world, bucket, "new")
    put(world, upload, 1)
    put(world, upload, 1)
    world.run(lambda session: find_session(session, TENANT, upload.public_id))
    world.run(lambda session: list_sessions(session, TENANT, state=SessionState.OPEN, before=9))
    world.run(lambda session: find_operation(session, TENANT, "new"))
    frozen = complete(world, upload)
    payload = AssembleUpload(session_id=frozen.id, generation=1)
    world.run(lambda session: read_assembly(session, payload, task_id=frozen.task_id or 0))
    world.run(lambda session: is_arriving(session, session.get_one(Bucket, bucket), "new"))
    world.run(lambda session: end_arriving(session, session.get_one(Bucket, bucket), "new"))
    world.run(lambda session: end_arriving_under(session, session.get_one(Bucket, bucket), "n"))
    world.run(lambda session: ends.page_of_waiting(session, 0))
    world.run(lambda session: expired_sessions(session, SessionState.OPEN))
    world.run(homeless_sessions)
    world.run(forget_results)
    world.run(lambda session: give_up_open(session, world.catalogue, frozen.id))
    world.run(lambda session: named(session, [new_id() for _ in range(20)]))
    world.run(lambda session: abort_session(session, world.catalogue, TENANT, upload.public_id))
    looked_at = 0
    with world.engine.connect() as connection:
        for text, parameters in seen:
            if not text.startswith(("SELECT", "UPDATE", "DELETE")) or " upload_" not in text:
                continue
            looked_at += 1
            for step in connection.exec_driver_sql(f"EXPLAIN {text}", parameters).mappings():
                if step["table"] is None or step["table"].startswith("<"):
                    continue
                assert step["type"] not in {"ALL", "index"}, (text, dict(step))
                assert "filesort" not in (step["Extra"] or ""), (text, dict(step))
    assert looked_at > 20


def test_expired_ones_are_found_without_reading_the_others(world: World, bucket: int) -> None:
    row = begin(world, bucket, "first")
    table: Any = UploadSession.__table__
    common = {c.name: getattr(row, a.key) for a in sa.inspect(UploadSession).column_attrs
              for c in a.columns if c.name not in {"id", "version_id"}}  # fmt: skip
    rows = [
        {**common, "public_id": new_id(), "operation_id": str(number), "expires_at": moment}
        for moment, first, count in ((utc_now(3600), 0, 3000), (utc_now(-60), 3000, 3))
        for number in range(first, first + count)
    ]
    with world.engine.begin() as connection:
        for start in range(0, len(rows), 500):
            connection.execute(sa.insert(table).values(rows[start : start + 500]))
        connection.exec_driver_sql("ANALYZE TABLE upload_sessions").all()

    def read(session: Session) -> tuple[int, int]:
        before = _rows_read(session)
        found = expired_sessions(session, SessionState.OPEN)
        return len(found), _rows_read(session) - before

    found, cost = world.run(read)
    assert found == 3
    assert cost < 50


def _rows_read(session: Session) -> int:
    found = session.execute(sa.text("SHOW SESSION STATUS LIKE 'Handler_read%'")).all()
    return sum(int(value) for _, value in found)
