"""Who is asking, and what they may do: bearer keys, scopes, tenants.

A key is looked up by the hash of its secret in the transaction that does the work, so that a revoked
key stops at once and a request costs no extra round of threads.
"""

from __future__ import annotations

from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from shared.catalog.accounts import Principal
from shared.core.errors import ForbiddenError

#: Longer ones were not made by us; not worth a hash.
MAX_SECRET_CHARACTERS = 256
ADMIN = "admin"

bearer = HTTPBearer(
    scheme_name="API key",
    description="A key made by `POST /v1/tenants/{tenant}/keys`, sent as `Authorization: Bearer blox_...`.",
    auto_error=False,
)


class Unauthorized(ForbiddenError):
    """A valid API key is needed: `Authorization: Bearer blox_...`."""

    code = "unauthorized"


def read_secret(credentials: HTTPAuthorizationCredentials | None) -> str:
    """Return the secret that was sent. Raises Unauthorized when there is none."""
    if credentials is None or not 0 < len(credentials.credentials) <= MAX_SECRET_CHARACTERS:
        raise Unauthorized
    return credentials.credentials


def require(principal: Principal, scope: str) -> None:
    """Raise ForbiddenError unless the key carries the scope, or is an admin's."""
    if scope not in principal.scopes and ADMIN not in principal.scopes:
        raise ForbiddenError(f"this key lacks the scope {scope}", code="missing_scope", scope=scope)


def is_admin(principal: Principal) -> bool:
    """Tell whether the key may act for every tenant."""
    return ADMIN in principal.scopes
