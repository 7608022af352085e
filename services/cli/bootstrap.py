"""What a fresh stack needs in its catalogue: channels, a tenant, a key to begin with.

Done again at every start: channels follow the settings, the key is made only when it is missing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from services.cli.embedded import write_private
from services.cli.sentences import sentence
from shared.catalog.accounts import ADMIN, authenticate, create_key, ensure_tenant
from shared.catalog.channels import ChannelInput, put_channel
from shared.catalog.secret_box import SecretBox
from shared.core.clock import Deadline
from shared.core.errors import BloxError, UnauthorizedError, UnavailableError
from shared.runtime.assembly import open_staging
from shared.runtime.database import build_engine
from shared.runtime.settings import ChannelSettings, Settings
from shared.storage.registry import prepare_channel
from shared.storage.spec import ChannelSpec

#: The tenant of the first key.
ADMIN_TENANT = "admin"
#: Seconds that making one channel's folder or bucket may take.
_PREPARE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class AdminAccess:
    """A key with every scope, and the tenant that it belongs to."""

    tenant_id: str
    key: str = field(repr=False)


def prepare_catalogue(settings: Settings, *, key_file: Path) -> AdminAccess:
    """Enter channels, tenant and key; returns the key, which `key_file` keeps for the next start.

    The schema must be there. Channels' folders and buckets are made when they are missing.
    """
    open_staging(settings).prepare(deadline=Deadline(_PREPARE_SECONDS))
    engine = build_engine(settings, threads=1)
    try:
        _enter_channels(engine, settings)
        return AdminAccess(ADMIN_TENANT, _admin_key(engine, key_file))
    finally:
        engine.dispose()


def _enter_channels(engine: sa.Engine, settings: Settings) -> None:
    secrets = SecretBox(settings.secret_key.get_secret_value())
    for name, channel in sorted(settings.channels.items()):
        own, credentials = _own_settings(channel), _credentials(channel)
        _prepare(ChannelSpec(name, channel.kind, own, credentials))
        with Session(engine) as session, session.begin():
            put_channel(
                session,
                ChannelInput(name=name, kind=channel.kind, settings=own, credentials=credentials),
                secrets=secrets,
            )


def _prepare(spec: ChannelSpec) -> None:
    try:
        prepare_channel(spec, deadline=Deadline(_PREPARE_SECONDS))
    except BloxError as error:
        raise UnavailableError(
            f"channel {spec.name} (BLOX_CHANNELS__{spec.name.upper()}__…) cannot be used",
            reason=sentence(error),
        ) from error


def _own_settings(channel: ChannelSettings) -> dict[str, Any]:
    own: dict[str, Any] = {}
    if channel.kind == "file":
        own["root"] = str(channel.root)
    else:
        own["endpoint"] = channel.endpoint
        own["bucket"] = channel.bucket
        if channel.region:
            own["region"] = channel.region
    for name in (
        "bandwidth_bytes_per_second",
        "part_bytes",
        "parallel_parts",
        "max_running",
        "breaker_failures",
        "breaker_open_seconds",
    ):
        if value := getattr(channel, name):
            own[name] = value
    return own


def _credentials(channel: ChannelSettings) -> dict[str, str]:
    if channel.kind == "file":
        return {}
    return {
        "access_key": channel.access_key,
        "secret_key": channel.secret_key.get_secret_value(),
    }


def _admin_key(engine: sa.Engine, key_file: Path) -> str:
    with Session(engine) as session, session.begin():
        if key_file.exists():
            kept = key_file.read_text().strip()
            try:
                authenticate(session, kept)
            except UnauthorizedError:
                # Another database than the one that it was made for.
                pass
            else:
                return kept
        ensure_tenant(session, ADMIN_TENANT, name="Administrators")
        secret = create_key(session, ADMIN_TENANT, scopes=[ADMIN], label="made by blox up").secret
    write_private(key_file, secret + "\n")
    return secret
