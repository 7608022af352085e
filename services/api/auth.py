"""Who is asking: bearer keys.

A key is looked up by the hash of its secret in the transaction that does the work, so that a
revoked key stops at once and a request costs no extra round of threads.
"""

from __future__ import annotations

from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from shared.catalog.accounts import ADMIN, Principal
from shared.core.errors import UnauthorizedError

#: Longer ones were not made by us; not worth a hash.
MAX_SECRET_CHARACTERS = 256

bearer = HTTPBearer(
    scheme_name="API key",
    description="Made by `POST /v1/tenants/{tenant}/keys`, sent as `Bearer blox_...`.",
    auto_error=False,
)


def read_secret(credentials: HTTPAuthorizationCredentials | None) -> str:
    """Return the secret that was sent. Raises UnauthorizedError when there is none."""
    if credentials is None or not 0 < len(credentials.credentials) <= MAX_SECRET_CHARACTERS:
        raise UnauthorizedError(
            "a key is needed: `Authorization: Bearer blox_...`", code="key_missing"
        )
    return credentials.credentials


def is_admin(principal: Principal) -> bool:
    """Tell whether the key may act for every tenant."""
    return principal.may(ADMIN)


def actor(principal: Principal) -> str:
    """Return who acted, for audit trails and decisions."""
    return f"{principal.tenant_id}/{principal.label or principal.key_id}"[:128]
