"""`blox doctor`: can this configuration work? Settings, servers, clock, schema, channels."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
import sqlalchemy as sa
from sqlalchemy.orm import Session

from services.cli.render import Format, FormatOption, show_rows
from services.cli.stack import DirectoryOption, stack_settings_variables
from shared.catalog.channels import list_channels
from shared.core.clock import Deadline, utc_now
from shared.core.errors import BloxError
from shared.outbox.inspection import list_nodes
from shared.outbox.outbox import make_client
from shared.runtime.assembly import Parts, assemble
from shared.runtime.metrics import Metrics
from shared.runtime.problems import problems
from shared.runtime.schema import schema_fault
from shared.runtime.settings import Settings, load_settings, unknown_variables

#: Seconds between this machine's clock and the database's that leases bear well.
_SKEW_SECONDS = 2.0
_PROBE_SECONDS = 10.0
#: Seconds after which a process that reports every two counts as gone.
_SILENT_SECONDS = 30.0
_PROBE_PREFIX = "blox-doctor-probe/"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at: `ok`, `warning` or `fault`, and a sentence."""

    what: str
    verdict: str
    detail: str


def doctor(output: FormatOption = Format.TABLE, directory: DirectoryOption = Path(".blox")) -> int:
    """Look at settings and servers, and say what would not work. Exits with 1 for a fault."""
    variables = stack_settings_variables(directory)
    settings = load_settings(variables)
    findings = [*_settings(settings, variables), *_redis(settings)]
    parts = assemble(settings, Metrics("doctor"), threads=2)
    try:
        for look in (_database, _clock, _schema, _channels, _consumers):
            findings += _guarded(look, parts)
    finally:
        parts.outbox.close(1.0)
        parts.engine.dispose()
    rows = [
        {"what": item.what, "verdict": item.verdict, "detail": item.detail} for item in findings
    ]
    show_rows(rows, ("verdict", "what", "detail"), output, empty="nothing to look at")
    return 1 if any(item.verdict == "fault" for item in findings) else 0


def _settings(settings: Settings, variables: dict[str, str]) -> Iterator[Finding]:
    found = problems(settings, unknown=unknown_variables(variables))
    for sentence in found.errors:
        yield Finding("settings", "fault", sentence)
    for sentence in found.warnings:
        yield Finding("settings", "warning", sentence)
    if not found.errors and not found.warnings:
        yield Finding("settings", "ok", "nothing to complain of")


def _redis(settings: Settings) -> Iterator[Finding]:
    client = make_client(settings.redis_url, 2.0)
    try:
        info: Any = client.info("server")
        memory: Any = client.config_get("maxmemory*")
    except redis.RedisError as error:
        yield Finding("redis", "fault", f"does not answer: {error}")
        return
    finally:
        client.close()
    yield Finding("redis", "ok", f"version {info.get('redis_version')}")
    policy = str(memory.get("maxmemory-policy", "noeviction"))
    if str(memory.get("maxmemory", "0")) != "0" and policy != "noeviction":
        yield Finding(
            "redis", "fault", f"maxmemory-policy {policy} drops messages: set it to noeviction"
        )


def _database(parts: Parts) -> Iterator[Finding]:
    with Session(parts.engine) as session:
        version = session.scalar(
            sa.text("SELECT sqlite_version()" if parts.settings.is_sqlite else "SELECT VERSION()")
        )
    yield Finding("database", "ok", f"{parts.engine.dialect.name} {version}")


def _clock(parts: Parts) -> Iterator[Finding]:
    if parts.settings.is_sqlite:
        return
    before = utc_now()
    with Session(parts.engine) as session:
        theirs: dt.datetime = session.scalar(sa.text("SELECT UTC_TIMESTAMP(6)"))
    half = (utc_now() - before) / 2
    skew = abs((theirs - before - half).total_seconds())
    verdict = "ok" if skew < _SKEW_SECONDS else "warning"
    yield Finding("clock", verdict, f"{skew:.3f} s from the database's")


def _schema(parts: Parts) -> Iterator[Finding]:
    fault = schema_fault(parts.engine)
    yield Finding("schema", "ok" if fault is None else "fault", fault or "as this version wants it")


def _channels(parts: Parts) -> Iterator[Finding]:
    with Session(parts.engine) as session:
        records = [(record.name, record.is_enabled) for record in list_channels(session)]
    for name, is_enabled in records:
        if not is_enabled:
            yield Finding(f"channel {name}", "warning", "is switched off")
            continue
        try:
            deadline = Deadline(_PROBE_SECONDS)
            next(iter(parts.channels.get(name).list(_PROBE_PREFIX, deadline=deadline)), None)
        except BloxError as error:
            yield Finding(f"channel {name}", "fault", str(error))
        else:
            yield Finding(f"channel {name}", "ok", "answers")


def _consumers(parts: Parts) -> Iterator[Finding]:
    with Session(parts.engine) as session:
        rows = list_nodes(session)
    limit = utc_now() - dt.timedelta(seconds=_SILENT_SECONDS)
    consumed = {
        queue for row in rows if row["last_seen"] >= limit for queue in (row["queues"] or [])
    }
    for queue in ("upload", "review", "delete"):
        if queue in consumed:
            yield Finding(f"queue {queue}", "ok", "is consumed")
        else:
            yield Finding(f"queue {queue}", "warning", "nobody consumes it now")


def _guarded(look: Callable[[Parts], Iterator[Finding]], parts: Parts) -> list[Finding]:
    try:
        return list(look(parts))
    except (BloxError, sa.exc.SQLAlchemyError, OSError) as error:
        name = look.__name__.lstrip("_")
        return [Finding(name, "fault", f"{type(error).__name__}: {str(error).splitlines()[0]}")]
