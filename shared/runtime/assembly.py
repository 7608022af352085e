"""Builds what a service works with from its settings. Nothing is connected before its first use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa

from shared.catalog.channel_catalogue import ChannelCatalogue
from shared.catalog.channel_slots import ChannelLimits, ChannelSlots
from shared.catalog.kinds import RegisteredCatalogue, register_kinds
from shared.catalog.origins.slots import OriginLimits
from shared.catalog.secret_box import SecretBox
from shared.coordination.slots import COMMAND_SECONDS, SLOT_SECONDS, RedisSlots
from shared.core.shares import Shares
from shared.outbox.outbox import Outbox
from shared.runtime.database import build_engine
from shared.runtime.metrics import Metrics, product_version
from shared.runtime.observed_channels import ChannelMeter, ObservedChannels
from shared.runtime.settings import Settings
from shared.storage.file import FileChannel
from shared.storage.registry import Channels
from shared.storage.spec import ChannelSpec
from shared.storage.staging import Staging
from shared.storage.staging_objects import ObjectGround


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of one process. The outbox knows all kinds; a worker adds the handlers."""

    settings: Settings
    engine: sa.Engine
    outbox: Outbox
    catalogue: RegisteredCatalogue
    channels: ChannelCatalogue
    staging: Staging
    secrets: SecretBox
    slots: ChannelSlots
    shares: Shares


def assemble(settings: Settings, metrics: Metrics, *, threads: int) -> Parts:
    """Make the parts of one process, whose `threads` use the database at a time."""
    engine = build_engine(settings, threads=threads, observe_wait=metrics.observe_pool_wait)
    secrets = SecretBox(settings.secret_key.get_secret_value())
    meter = ChannelMeter(metrics)
    channels = ChannelCatalogue(
        engine,
        secrets,
        channels=ObservedChannels(meter),
        on_event=metrics.count_cache("channels"),
    )
    outbox = Outbox(
        engine,
        settings.redis_url,
        namespace=settings.namespace,
        settings=settings.outbox,
        version=product_version(),
        places=open_slots(settings),
        limits=OriginLimits(ChannelLimits(channels), max_running=settings.origin.max_running),
    )
    outbox.subscribe(metrics.on_signal)
    shares = Shares(threads)
    return Parts(
        settings=settings,
        engine=engine,
        outbox=outbox,
        catalogue=register_kinds(
            outbox,
            grace_seconds=settings.grace_seconds,
            switched_off=settings.services.switched_off,
        ),
        channels=channels,
        staging=open_staging(
            settings, node=lambda: outbox.context.node, channels=ObservedChannels(meter)
        ),
        secrets=secrets,
        slots=ChannelSlots(outbox.resources, shares),
        shares=shares,
    )


def open_slots(settings: Settings) -> RedisSlots:
    """Return the slots; nothing is connected before their first use."""
    return RedisSlots(
        settings.redis_url,
        settings.namespace,
        # The epoch must outlive a beat, and a token the epoch.
        slot_seconds=max(SLOT_SECONDS, 4 * settings.outbox.renew_seconds),
        command_seconds=min(COMMAND_SECONDS, settings.outbox.redis_timeout_seconds),
    )


def open_staging(
    settings: Settings,
    *,
    node: Callable[[], str] | None = None,
    channels: Channels | None = None,
) -> Staging:
    """Return the staging area; it must have been prepared, by the API's start or by hand.

    `node` names this process as the table of processes does; `channels` opens (and counts) buckets.
    """
    own = settings.staging
    if own.kind == "file":
        return Staging(FileChannel(own.path, name="staging"))
    where = {"endpoint": own.endpoint, "bucket": own.bucket, "prefix": own.prefix}
    spec = ChannelSpec(
        "staging",
        "s3",
        {**where, **({"region": own.region} if own.region else {})},
        {"access_key": own.access_key, "secret_key": own.secret_key.get_secret_value()},
    )
    channel = (channels or Channels()).open(spec).channel
    ground = ObjectGround(
        channel,
        node=node,
        part_bytes=own.part_bytes,
        memory_bytes=own.memory_bytes,
        disk_bytes=own.disk_bytes,
    )
    return Staging(channel, ground)
