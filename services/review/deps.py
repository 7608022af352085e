"""What the handlers of this service work with."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.review.resting import Rests
from services.review.sandbox import SandboxLimits
from shared.catalog.context import Catalogue
from shared.catalog.erasing import ChannelBook
from shared.catalog.secret_box import SecretBox
from shared.fetch import Fetcher
from shared.outbox.db import Database
from shared.storage.staging import Staging


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """How reviewers elsewhere are reached.

    `callback_base` is our own address as they see it, empty where they have been told otherwise.
    """

    fetch: Fetcher
    secrets: SecretBox
    callback_base: str = ""
    #: Seconds that one call may take; whoever needs longer answers by callback.
    call_seconds: float = 15.0
    rests: Rests = field(default_factory=Rests)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deps:
    """What the handler works with; None is what this deployment does not have.

    `clamd` is the address of ClamAV's daemon: `unix:/path` or `tcp://host:port`.
    """

    db: Database
    catalogue: Catalogue
    staging: Staging
    channels: ChannelBook | None = None
    outside: Outside | None = None
    clamd: str = ""
    limits: SandboxLimits = field(default_factory=SandboxLimits)
