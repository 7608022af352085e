"""Addresses that callers name: looked at before they are kept."""

from __future__ import annotations

from services.api.deps import Caller
from shared.core.errors import InvalidError
from shared.fetch import Fetcher, FetchError


async def vet_address(caller: Caller, url: str) -> None:
    """Raise InvalidError unless the address may be connected to; it is vetted again when it is.

    Resolves names, off the event loop: who asks must be known before.
    """
    fetch = caller.api.deps.fetch
    await caller.api.work.files(lambda: _vet(fetch, url))


def _vet(fetch: Fetcher, url: str) -> None:
    try:
        fetch.vet(url)
    except FetchError as error:
        raise InvalidError(f"{url}: {error}", code=error.code) from error
