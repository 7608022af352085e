"""What is wrong or risky about a set of settings, in sentences. Nothing is opened or asked."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import sqlalchemy as sa

from shared.outbox.dialect import IDLE_TRANSACTION_SECONDS, STATEMENT_SECONDS
from shared.runtime.settings import (
    ChannelSettings,
    Settings,
    SettingsError,
    StagingSettings,
)

#: Connections that a process needs besides one per thread: dispatcher, claims, finisher, heartbeat,
#: scans, health.
EXTRA_CONNECTIONS = 8
_FERNET_KEY_BYTES = 32
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_HOURS_OF_RETRIES = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Problems:
    """`errors` forbid the start; `warnings` are written to the log and shown by `blox doctor`."""

    errors: tuple[str, ...]
    warnings: tuple[str, ...]

    def refuse(self) -> None:
        """Raise SettingsError with all errors, if there is one."""
        if self.errors:
            raise SettingsError("\n".join(self.errors))


def problems(settings: Settings, *, unknown: Sequence[str] = ()) -> Problems:
    """Judge a set of settings; `unknown` are names of variables that no setting has."""
    errors = (*_address_errors(settings), *_secret_errors(settings), *_pair_errors(settings))
    named = (f"{name} is set, but there is no such setting." for name in unknown)
    return Problems(errors=errors, warnings=(*named, *_warnings(settings)))


def _address_errors(settings: Settings) -> Iterator[str]:
    yield from _database_errors(settings.database_url)
    if settings.is_sqlite and settings.database_url.partition("///")[2] in {"", ":memory:"}:
        yield "BLOX_DATABASE_URL names no file: several processes share the database."
    if urlsplit(settings.redis_url).scheme not in {"redis", "rediss", "unix"}:
        yield "BLOX_REDIS_URL must begin with redis://, rediss:// or unix://."
    for name, channel in settings.channels.items():
        missing = _missing(channel)
        if missing:
            variables = ", ".join(f"BLOX_CHANNELS__{name}__{part}".upper() for part in missing)
            yield f"Channel {name} is of kind {channel.kind}, but lacks {variables}."
    yield from _staging_errors(settings)


def _database_errors(address: str) -> Iterator[str]:
    scheme = address.partition(":")[0]
    if scheme.partition("+")[0] not in {"sqlite", "mysql", "mariadb"}:
        yield f"BLOX_DATABASE_URL is {scheme}://…: it must be sqlite or mysql+pymysql."
        return
    try:
        sa.make_url(address).get_dialect().import_dbapi()
    except sa.exc.ArgumentError:
        yield "BLOX_DATABASE_URL is not an address."
    except ImportError:
        yield f"BLOX_DATABASE_URL: no driver for {scheme}:// is installed; take mysql+pymysql://."


def _staging_errors(settings: Settings) -> Iterator[str]:
    staging = settings.staging
    if staging.kind == "file":
        return
    if missing := _missing_of_bucket(staging):
        variables = ", ".join(f"BLOX_STAGING__{part}".upper() for part in missing)
        yield f"Staging is of kind s3, but lacks {variables}."
    if staging.memory_bytes < 2 * staging.part_bytes:
        yield "BLOX_STAGING__MEMORY_BYTES holds not even two parts of BLOX_STAGING__PART_BYTES."
    for name, channel in settings.channels.items():
        if (channel.endpoint, channel.bucket) == (staging.endpoint, staging.bucket):
            yield f"BLOX_STAGING__BUCKET is that of channel {name}: staging needs one of its own."


def _missing(channel: ChannelSettings) -> list[str]:
    if channel.kind == "file":
        return [] if channel.root is not None else ["root"]
    return _missing_of_bucket(channel)


def _missing_of_bucket(channel: ChannelSettings | StagingSettings) -> list[str]:
    needed = {
        "endpoint": channel.endpoint,
        "bucket": channel.bucket,
        "access_key": channel.access_key,
        "secret_key": channel.secret_key.get_secret_value(),
    }
    return [part for part, value in needed.items() if not value]


def _secret_errors(settings: Settings) -> Iterator[str]:
    text = settings.secret_key.get_secret_value()
    if not text:
        yield (
            "BLOX_SECRET_KEY is not set: it encrypts the credentials of channels. "
            "Make one with `blox secret-key`, the same for all processes."
        )
        return
    try:
        size = len(base64.urlsafe_b64decode(text.encode()))
    except (ValueError, binascii.Error):
        size = 0
    if size != _FERNET_KEY_BYTES:
        yield "BLOX_SECRET_KEY is not 32 bytes in URL-safe base64."


def _pair_errors(settings: Settings) -> Iterator[str]:
    if settings.deployment == "kubernetes":
        if settings.is_sqlite:
            yield "SQLite is a file of one machine: on Kubernetes BLOX_DATABASE_URL names a server."
        if settings.staging.kind == "file" and not settings.staging.shared:
            yield (
                "BLOX_STAGING__SHARED is not true: on Kubernetes the API and the upload worker run "
                "in different pods, so BLOX_STAGING__PATH must be a volume that all of them mount, "
                "or BLOX_STAGING__KIND s3."
            )
        if settings.health.host in _LOOPBACK:
            yield "BLOX_HEALTH__HOST is a loopback address, where Kubernetes reaches no probe."
    if not settings.consumed_regions:
        yield "BLOX_CONSUME_BASE is false and BLOX_REGIONS names none: nothing is consumed."
    if settings.database.read_timeout_seconds <= STATEMENT_SECONDS:
        yield (
            f"BLOX_DATABASE__READ_TIMEOUT_SECONDS must be above the {STATEMENT_SECONDS} s that one "
            "statement may take, else the client gives up before the server."
        )
    if settings.api.port and settings.api.port == settings.health.port:
        yield "BLOX_API__PORT and BLOX_HEALTH__PORT are the same."
    if settings.outbox.complete_seconds >= IDLE_TRANSACTION_SECONDS:
        yield (
            f"BLOX_OUTBOX__COMPLETE_SECONDS must be below {IDLE_TRANSACTION_SECONDS} s, after "
            "which the database ends an idle transaction."
        )


def _warnings(settings: Settings) -> Iterator[str]:
    outbox, worker = settings.outbox, settings.worker
    pool = settings.database.pool_size
    if pool and pool < worker.threads + EXTRA_CONNECTIONS:
        yield (
            f"{worker.threads} worker threads share a pool of {pool} connections: they will wait "
            f"for each other. Take at least {worker.threads + EXTRA_CONNECTIONS}, or 0."
        )
    if settings.shutdown_seconds < outbox.interrupt_after_seconds:
        yield (
            f"A shutdown of {settings.shutdown_seconds:g} s is shorter than the "
            f"{outbox.interrupt_after_seconds:g} s that an execution gets to stop by itself: "
            "work will come back only when its lease has expired."
        )
    if outbox.lease_seconds < outbox.renew_seconds * 3:
        yield (
            f"A lease of {outbox.lease_seconds:g} s renewed every {outbox.renew_seconds:g} s "
            "survives only one missed renewal."
        )
    if settings.grace_seconds == 0:
        yield "BLOX_GRACE_SECONDS is 0: content without a reference is deleted at once."
    if settings.staging.max_age_seconds < _HOURS_OF_RETRIES and not settings.is_sqlite:
        yield (
            f"Staging files that nothing names are removed after "
            f"{settings.staging.max_age_seconds:g} s: slow uploads may still be writing them."
        )
    if settings.sweeps.tombstone_seconds < outbox.lease_seconds:
        yield (
            "BLOX_SWEEPS__TOMBSTONE_SECONDS is shorter than a lease: a late write to a channel may "
            "stay there for ever."
        )
