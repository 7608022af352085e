"""Time-limited links: what one lets whom do, signed with the deployment's key and the API key's.

A link holds no secret of its own: revoking the API key that made it, or changing the deployment's
secret key, ends it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from contextlib import closing
from dataclasses import dataclass

from sqlalchemy.orm import Session

from shared.catalog.accounts import Principal
from shared.catalog.secret_box import SecretBox
from shared.core.errors import ForbiddenError, UnauthorizedError
from shared.outbox.db import cursor_of
from shared.outbox.dialect import dialect_of

#: The longest that a link may be good for.
MAX_LINK_SECONDS = 7 * 86_400
_VERSION = "blox-link-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkClaims:
    """What a link allows: all of it is signed.

    `path` is the decoded path of the request, `expires_at` seconds since 1970. What is None is not
    bound.
    """

    method: str
    path: bytes
    key_id: int
    expires_at: int
    content_type: str | None = None
    max_bytes: int | None = None
    sha256: str | None = None


def sign_link(session: Session, box: SecretBox, claims: LinkClaims) -> str:
    """Return the signature of a link that the key `claims.key_id` makes."""
    holder = _holder(session, claims.key_id)
    holder.demand_good()
    return _signature(box, claims, holder.key_sha256)


def open_link(
    session: Session, box: SecretBox, claims: LinkClaims, signature: str, *, now: float
) -> Principal:
    """Return for whom a link acts, never more than its key may do at this moment.

    Raises ForbiddenError (`link_signature`, `link_expired`), and UnauthorizedError when the key is
    revoked or has expired, or its tenant is disabled.
    """
    try:
        holder = _holder(session, claims.key_id)
    except UnauthorizedError:
        # Nobody learns from links which keys there are, or were.
        raise _not_signed() from None
    expected = _signature(box, claims, holder.key_sha256)
    if not hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace")):
        raise _not_signed()
    holder.demand_good()
    if now >= claims.expires_at:
        raise ForbiddenError("the link has expired", code="link_expired")
    return holder.principal


def _not_signed() -> ForbiddenError:
    return ForbiddenError(
        "the link was not made here in this form: its signature does not fit",
        code="link_signature",
    )


def _signature(box: SecretBox, claims: LinkClaims, key_sha256: str) -> str:
    text = json.dumps(
        [
            _VERSION,
            claims.method,
            claims.path.hex(),
            claims.key_id,
            claims.expires_at,
            claims.content_type,
            claims.max_bytes,
            claims.sha256,
        ]
    )
    secret = box.derive(f"{_VERSION}:{claims.key_id}:{key_sha256}")
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()


_HOLDER = """
SELECT k.tenant_id, k.label, k.scopes, k.role, k.secret_sha256,
       k.revoked_at IS NOT NULL, k.expires_at IS NOT NULL AND k.expires_at <= {clock}
FROM api_keys k JOIN tenants t ON t.id = k.tenant_id
WHERE k.id = {p} AND t.is_enabled = 1
"""


@dataclass(frozen=True, slots=True)
class _Holder:
    """The key that a link is made with, as it stands now."""

    principal: Principal
    key_sha256: str
    is_revoked: bool
    is_expired: bool

    def demand_good(self) -> None:
        """Raise UnauthorizedError for a key that is over."""
        if self.is_revoked:
            raise UnauthorizedError("the key of this link is revoked", code="key_revoked")
        if self.is_expired:
            raise UnauthorizedError("the key of this link has expired", code="key_expired")


def _holder(session: Session, key_id: int) -> _Holder:
    statement = dialect_of(session.get_bind().engine).sql(_HOLDER)
    with closing(cursor_of(session)) as cursor:
        cursor.execute(statement, (key_id,))
        found = cursor.fetchone()
    if found is None:
        raise UnauthorizedError("the key is not known", code="key_unknown")
    tenant_id, label, scopes, role, key_sha256, is_revoked, is_expired = found
    principal = Principal(
        tenant_id=tenant_id,
        key_id=key_id,
        label=label,
        scopes=frozenset(json.loads(scopes)),
        role=role,
    )
    return _Holder(principal, str(key_sha256), bool(is_revoked), bool(is_expired))
