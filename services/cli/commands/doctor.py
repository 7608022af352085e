"""`blox doctor`: can this configuration work? Settings, servers, clock, schema, places of bytes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pydantic
import redis
import sqlalchemy as sa
from sqlalchemy.orm import Session

from services.cli.commands.doctor_regions import consumed_places, look_at_regions, queues_of
from services.cli.commands.doctor_reviews import look_at_reviewers
from services.cli.render import Format, FormatOption, show_rows
from services.cli.sentences import EXPECTED, sentence
from services.cli.stack import DirectoryOption, missing_file, stack_settings_variables
from shared.catalog.channels import list_channels
from shared.catalog.secret_box import SecretBox
from shared.core.clock import Deadline, utc_now
from shared.core.errors import BloxError
from shared.outbox.client import make_client
from shared.outbox.window import Place
from shared.runtime.assembly import Parts, assemble
from shared.runtime.metrics import Metrics
from shared.runtime.problems import Problems, problems
from shared.runtime.schema import schema_fault
from shared.runtime.settings import Settings, StagingSettings, load_settings, unknown_variables

#: Seconds between this machine's clock and the database's that leases bear well.
_SKEW_SECONDS = 2.0
_PROBE_SECONDS = 10.0
_PROBE_PREFIX = "blox-doctor-probe/"
#: The oldest Redis that has every command that the outbox sends.
_OLDEST_REDIS = (6, 2)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at: `ok`, `warning` or `fault`, and a sentence."""

    verdict: str
    what: str
    detail: str


def doctor(output: FormatOption = Format.TABLE, directory: DirectoryOption = Path(".blox")) -> int:
    """Say what would not work; exit 1 for a fault.

    Looks at settings, Redis, staging, database, clock, schema, channels and consumers.
    """
    variables = stack_settings_variables(directory)
    settings = load_settings(variables)
    found = problems(settings, unknown=unknown_variables(variables))
    findings = [*_settings(found), *_redis(settings), *_inside(settings, found)]
    show_rows([asdict(item) for item in findings], ("verdict", "what", "detail"), output, empty="")
    return 1 if any(item.verdict == "fault" for item in findings) else 0


def _settings(found: Problems) -> Iterator[Finding]:
    for text in found.errors:
        yield Finding("fault", "settings", text)
    for text in found.warnings:
        yield Finding("warning", "settings", text)
    if not found.errors and not found.warnings:
        yield Finding("ok", "settings", "nothing to complain of")


def _redis(settings: Settings) -> Iterator[Finding]:
    try:
        client = make_client(settings.redis_url, 2.0)
    except ValueError:
        # The settings say what is wrong with the address.
        return
    try:
        server: Any = client.info("server")
        memory: Any = client.info("memory")
    except redis.RedisError as error:
        yield Finding("fault", "redis", f"does not answer: {error}")
        return
    finally:
        client.close()
    version = str(server.get("redis_version", ""))
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < _OLDEST_REDIS:
        yield Finding("fault", "redis", f"version {version}: it must be 6.2 or newer")
    else:
        yield Finding("ok", "redis", f"version {version}")
    policy = str(memory.get("maxmemory_policy", "noeviction"))
    if policy != "noeviction":
        # Without a limit it evicts nothing yet.
        verdict = "fault" if int(memory.get("maxmemory", 0)) else "warning"
        detail = f"maxmemory-policy {policy} drops messages when memory is short: set noeviction"
        yield Finding(verdict, "redis", detail)


def _inside(settings: Settings, found: Problems) -> Iterator[Finding]:
    """Look at all that is reached through the database, each thing only if it can be there."""
    if any("BLOX_DATABASE_URL" in text for text in found.errors):
        return
    if (missing := missing_file(settings)) is not None:
        yield Finding("fault", "database", missing)
        return
    if any("BLOX_SECRET_KEY" in text for text in found.errors):
        # What needs no credentials can be looked at all the same.
        stand_in = pydantic.SecretStr(SecretBox.generate_key())
        settings = settings.model_copy(update={"secret_key": stand_in})
    looks = [_staging, _database, _clock, _schema, _channels, _consumers, _regions, _reviewers]
    if any("BLOX_STAGING__" in text for text in found.errors):
        settings = settings.model_copy(update={"staging": StagingSettings()})
        looks.remove(_staging)
    parts = assemble(settings, Metrics("doctor"), threads=2)
    try:
        for look in looks:
            findings = _guarded(look, parts)
            yield from findings
            if look in (_database, _schema) and any(f.verdict == "fault" for f in findings):
                return
    finally:
        parts.outbox.close(1.0)
        parts.engine.dispose()


def _staging(parts: Parts) -> Iterator[Finding]:
    own = parts.settings.staging
    path, wanted = own.path, own.min_free_bytes
    parts.staging.channel.probe(deadline=Deadline(_PROBE_SECONDS))
    free = parts.staging.free_bytes()
    if free is None:
        yield Finding("ok", "staging", f"bucket {own.bucket} at {own.endpoint} answers")
    elif free < wanted:
        detail = f"{path} has {free:,} bytes free, BLOX_STAGING__MIN_FREE_BYTES wants {wanted:,}"
        yield Finding("fault", "staging", detail)
    else:
        yield Finding("ok", "staging", f"{path}, {free:,} bytes free")


def _database(parts: Parts) -> Iterator[Finding]:
    with Session(parts.engine) as session:
        version = session.scalar(
            sa.text("SELECT sqlite_version()" if parts.settings.is_sqlite else "SELECT VERSION()")
        )
    yield Finding("ok", "database", f"{parts.engine.dialect.name} {version}")


def _clock(parts: Parts) -> Iterator[Finding]:
    if parts.settings.is_sqlite:
        return
    before = utc_now()
    with Session(parts.engine) as session:
        theirs: dt.datetime = session.scalar(sa.text("SELECT UTC_TIMESTAMP(6)"))
    half = (utc_now() - before) / 2
    skew = abs((theirs - before - half).total_seconds())
    verdict = "ok" if skew < _SKEW_SECONDS else "warning"
    yield Finding(verdict, "clock", f"{skew:.3f} s from the database's")


def _schema(parts: Parts) -> Iterator[Finding]:
    fault = schema_fault(parts.engine)
    yield Finding("ok" if fault is None else "fault", "schema", fault or "as this version wants it")


def _channels(parts: Parts) -> Iterator[Finding]:
    with Session(parts.engine) as session:
        records = [(record.name, record.is_enabled) for record in list_channels(session)]
    if not records:
        yield Finding("warning", "channels", "there is none: no bucket can be made")
    for name, is_enabled in records:
        what = f"channel {name}"
        try:
            deadline = Deadline(_PROBE_SECONDS)
            next(iter(parts.channels.get(name).list(_PROBE_PREFIX, deadline=deadline)), None)
        except BloxError as error:
            yield Finding("fault", what, sentence(error))
            continue
        if is_enabled:
            yield Finding("ok", what, "answers")
        else:
            yield Finding("warning", what, "answers, but is switched off: it takes no new bytes")


def _regions(parts: Parts) -> Iterator[Finding]:
    for verdict, what, detail in look_at_regions(parts):
        yield Finding(verdict, what, detail)


def _reviewers(parts: Parts) -> Iterator[Finding]:
    for verdict, what, detail in look_at_reviewers(parts):
        yield Finding(verdict, what, detail)


def _consumers(parts: Parts) -> Iterator[Finding]:
    consumed = consumed_places(parts)
    for queue in queues_of(parts):
        if Place(queue, "") in consumed:
            yield Finding("ok", f"queue {queue}", "is consumed")
        else:
            yield Finding("warning", f"queue {queue}", "nobody consumes it now")


def _guarded(look: Callable[[Parts], Iterator[Finding]], parts: Parts) -> list[Finding]:
    try:
        return list(look(parts))
    except EXPECTED as error:
        return [Finding("fault", look.__name__.lstrip("_"), sentence(error))]
