"""The client for addresses that tenants name, as this deployment allows it."""

from __future__ import annotations

from shared.fetch import Fetcher, FetchLimits, FetchPolicy
from shared.fetch.client import tls_context
from shared.runtime.settings import Settings


def open_fetcher(settings: Settings) -> Fetcher:
    """Return the client. Raises InvalidError when the allow-list or the authorities are none."""
    fetch = settings.fetch
    ca_file = None if fetch.ca_file is None else str(fetch.ca_file)
    return Fetcher(FetchPolicy(ports=fetch.ports, allow=fetch.allow), tls=tls_context(ca_file))


def fetch_limits(settings: Settings) -> FetchLimits:
    """Return the waits of one exchange; whoever fetches adds what it may bring."""
    return FetchLimits(
        connect_seconds=settings.fetch.connect_seconds, idle_seconds=settings.fetch.idle_seconds
    )
