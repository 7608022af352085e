"""Tenants and their API keys. A key's secret is shown once; the table holds its SHA-256."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import secrets
from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shared.catalog.limits import check_tenant_id, is_name
from shared.catalog.models import ApiKey, Tenant, utc_clock
from shared.core.errors import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnauthorizedError,
)
from shared.outbox.db import cursor_of
from shared.outbox.dialect import dialect_of

ADMIN = "admin"
#: What a key may be allowed to do. `admin` includes all others.
SCOPES = frozenset(
    {
        "objects:read",
        "objects:write",
        "buckets:read",
        "buckets:write",
        "tasks:read",
        "tasks:write",
        "reviews:read",
        "reviews:write",
        "backups:read",
        "backups:write",
        "holds:read",
        "holds:write",
        "notifications:read",
        "notifications:write",
        ADMIN,
    }
)
#: Begins every secret, so that scanners recognise one that leaked.
SECRET_PREFIX = "blox_"  # noqa: S105 - what every secret begins with


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key that was just made. `secret` cannot be shown again."""

    id: int
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Principal:
    """Who makes a request, and what that one may do."""

    tenant_id: str
    key_id: int
    label: str
    scopes: frozenset[str]
    role: str

    def may(self, scope: str) -> bool:
        """Tell whether the key has a scope."""
        return scope in self.scopes or ADMIN in self.scopes

    def require(self, scope: str) -> None:
        """Raise ForbiddenError (`scope_missing`) unless the key has a scope."""
        if not self.may(scope):
            raise ForbiddenError(f"the key lacks the scope {scope}", code="scope_missing")


def create_tenant(session: Session, tenant_id: str, *, name: str = "") -> Tenant:
    """Create a tenant. Raises ConflictError (`tenant_exists`)."""
    check_tenant_id(tenant_id)
    tenant = Tenant(id=tenant_id, name=name, is_enabled=1, created_at=utc_clock())
    try:
        with session.begin_nested():
            session.add(tenant)
    except IntegrityError as error:
        raise ConflictError("there is such a tenant already", code="tenant_exists") from error
    return tenant


def ensure_tenant(session: Session, tenant_id: str, *, name: str = "") -> Tenant:
    """Return a tenant, created when it is missing."""
    check_tenant_id(tenant_id)
    found = session.get(Tenant, tenant_id)
    if found is not None:
        return found
    try:
        return create_tenant(session, tenant_id, name=name)
    except ConflictError:
        return session.get_one(Tenant, tenant_id)


def list_tenants(session: Session, *, after: str = "", limit: int = 100) -> list[Tenant]:
    """Return tenants by id, those behind `after`."""
    if not is_name(after):
        return []
    return list(
        session.scalars(sa.select(Tenant).where(Tenant.id > after).order_by(Tenant.id).limit(limit))
    )


def create_key(
    session: Session,
    tenant_id: str,
    *,
    scopes: Collection[str],
    label: str = "",
    role: str = "",
    expires_at: dt.datetime | None = None,
) -> NewKey:
    """Create a key of a tenant. Raises InvalidError for an unknown scope, NotFoundError."""
    unknown = set(scopes) - SCOPES
    if unknown or not scopes:
        raise InvalidError(f"scopes are some of {', '.join(sorted(SCOPES))}", code="scope_unknown")
    if not is_name(tenant_id) or session.get(Tenant, tenant_id) is None:
        raise NotFoundError("there is no such tenant", code="tenant_not_found")
    secret = SECRET_PREFIX + secrets.token_urlsafe(32)
    key = ApiKey(
        tenant_id=tenant_id,
        label=label,
        secret_sha256=_digest(secret),
        scopes=sorted(scopes),
        role=role,
        created_at=utc_clock(),
        expires_at=expires_at,
    )
    session.add(key)
    session.flush()
    return NewKey(key.id, secret)


def list_keys(session: Session, tenant_id: str) -> list[ApiKey]:
    """Return the keys of a tenant, revoked ones as well, by id."""
    if not is_name(tenant_id):
        return []
    return list(
        session.scalars(sa.select(ApiKey).where(ApiKey.tenant_id == tenant_id).order_by(ApiKey.id))
    )


def revoke_key(session: Session, tenant_id: str, key_id: int) -> None:
    """Revoke a key from now on; again is no error. Raises NotFoundError (`key_not_found`)."""
    key = None
    if is_name(tenant_id):
        key = session.scalars(
            sa.select(ApiKey)
            .where(ApiKey.id == key_id, ApiKey.tenant_id == tenant_id)
            .with_for_update()
        ).one_or_none()
    if key is None:
        raise NotFoundError("there is no such key", code="key_not_found")
    if key.revoked_at is None:
        key.revoked_at = utc_clock()
        session.flush()


#: Every request begins with this one: on the driver's cursor it costs a sixth of the ORM's.
_AUTHENTICATE = """
SELECT k.tenant_id, k.id, k.label, k.scopes, k.role,
       k.revoked_at IS NOT NULL, k.expires_at IS NOT NULL AND k.expires_at <= {clock}
FROM api_keys k JOIN tenants t ON t.id = k.tenant_id
WHERE k.secret_sha256 = {p} AND t.is_enabled = 1
"""


def authenticate(session: Session, secret: str) -> Principal:
    """Return who holds this secret. Never cached, so that a revocation counts at once.

    Raises UnauthorizedError for an unknown, revoked or expired key, or a disabled tenant.
    """
    statement = dialect_of(session.get_bind().engine).sql(_AUTHENTICATE)
    with closing(cursor_of(session)) as cursor:
        cursor.execute(statement, (_digest(secret),))
        found = cursor.fetchone()
    if found is None:
        raise UnauthorizedError("the key is not known", code="key_unknown")
    tenant_id, key_id, label, scopes, role, is_revoked, is_expired = found
    if is_revoked:
        raise UnauthorizedError("the key is revoked", code="key_revoked")
    if is_expired:
        raise UnauthorizedError("the key has expired", code="key_expired")
    return Principal(
        tenant_id=tenant_id,
        key_id=key_id,
        label=label,
        scopes=frozenset(json.loads(scopes)),
        role=role,
    )


def _digest(secret: str) -> str:
    # Plain SHA-256 is enough: the secret is 32 random bytes, not a password.
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
