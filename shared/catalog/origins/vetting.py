"""The check of a bucket's origins when they are saved; each connection is checked again."""

from __future__ import annotations

from shared.catalog.origins.policy import OriginPolicy
from shared.core.clock import Deadline
from shared.core.errors import InvalidError
from shared.fetch import Fetcher, FetchRefused, FetchTimeout, FetchUnavailable, parse_url

#: Seconds that the names of all sources together may take.
VET_SECONDS = 15.0


def vet_policy(fetcher: Fetcher, policy: OriginPolicy) -> None:
    """Look every source's host up. Blocks; not inside a transaction.

    Raises InvalidError (`origin_refused`, `origin_unknown`) for one to which we would not go, and
    FetchTimeout when the names do not resolve in time.
    """
    deadline = Deadline(VET_SECONDS)
    hosts = {parse_url(url).origin: url for url in policy.urls()}
    for url in hosts.values():
        host = parse_url(url).host
        try:
            fetcher.vet(url, seconds=max(0.1, deadline.remaining()))
        except FetchRefused as error:
            raise InvalidError(f"{host}: {error}", code="origin_refused", host=host) from error
        except FetchTimeout:
            raise
        except FetchUnavailable as error:
            raise InvalidError(f"{host}: {error}", code="origin_unknown", host=host) from error
