"""The errors of an exchange, drawn as one tree.

FetchError
├── FetchRefused         we do not go there: url, port, address, redirects      (permanent)
├── FetchTooLarge        more bytes than the caller takes                       (permanent)
└── FetchUnavailable     name, connection, TLS or answer is broken              (transient)
    ├── FetchTimeout     ... or does not come in time
    └── ResolverBusy     not asked for: we resolve too many names at this moment
"""

from __future__ import annotations

from shared.core.errors import BloxError, PermanentError, UnavailableError


class FetchError(BloxError):
    """The exchange failed."""

    code = "fetch_error"


class FetchRefused(FetchError, PermanentError):
    """The address is not one that we go to."""

    code = "address_forbidden"


class FetchTooLarge(FetchError, PermanentError):
    """The answer has more bytes than the caller takes."""

    code = "body_too_large"


class FetchUnavailable(FetchError, UnavailableError):
    """The other side does not answer, or with something that is no answer."""

    code = "connect_failed"


class FetchTimeout(FetchUnavailable):
    """The other side did not answer in time."""

    code = "total_timeout"


class ResolverBusy(FetchUnavailable):
    """Too many names are being resolved; it says nothing about the host."""

    code = "resolver_busy"
