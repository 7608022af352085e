"""Floor 1: HTTP to addresses that somebody else has named, over vetted and bounded connections."""

from shared.fetch.answer import Answer, Hop
from shared.fetch.client import Fetcher
from shared.fetch.errors import (
    FetchError,
    FetchRefused,
    FetchTimeout,
    FetchTooLarge,
    FetchUnavailable,
    ResolverBusy,
)
from shared.fetch.headers import check_headers
from shared.fetch.limits import FetchLimits
from shared.fetch.policy import FetchPolicy
from shared.fetch.urls import Target, parse_url

__all__ = [
    "Answer",
    "FetchError",
    "FetchLimits",
    "FetchPolicy",
    "FetchRefused",
    "FetchTimeout",
    "FetchTooLarge",
    "FetchUnavailable",
    "Fetcher",
    "Hop",
    "ResolverBusy",
    "Target",
    "check_headers",
    "parse_url",
]
