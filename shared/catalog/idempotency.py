"""Requests that carry an `Idempotency-Key`: the same request gets the same answer for a day.

The key's row is written in the transaction of the effect: there is never one without the other.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.orm import Session

from shared.catalog.models import IdempotencyRecord, utc_clock, utc_now
from shared.core.errors import ConflictError, InvalidError

#: Seconds for which an answer is kept.
KEEP_SECONDS = 24 * 3600.0
MAX_KEY_CHARACTERS = 191
#: Answers that one transaction forgets.
FORGET_ROWS = 1000

_TABLE = cast("sa.Table", IdempotencyRecord.__table__)


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """What the first request was answered."""

    status: int
    answer: dict[str, Any]


def fingerprint(method: str, path: str, body_sha256: str) -> str:
    """Return what makes two requests the same."""
    return hashlib.sha256(f"{method}\n{path}\n{body_sha256}".encode()).hexdigest()


def claim(
    session: Session, tenant_id: str, key: str, request_fingerprint: str
) -> StoredAnswer | None:
    """Take a key for this transaction; None means: go on, and `keep` the answer before the commit.

    A request with the same key that is under way makes this one wait for its commit. Returns the
    stored answer of an earlier one. Raises ConflictError (`idempotency_mismatch`) when that was
    another request.
    """
    if not 1 <= len(key) <= MAX_KEY_CHARACTERS or not key.isprintable():
        raise InvalidError(
            f"an idempotency key has 1 to {MAX_KEY_CHARACTERS} printable characters",
            code="idempotency_key_invalid",
        )
    _insert_if_missing(session, tenant_id, key, request_fingerprint)
    row, now = session.execute(
        sa.select(IdempotencyRecord, utc_clock())
        .where(IdempotencyRecord.tenant_id == tenant_id, IdempotencyRecord.idempotency_key == key)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one()
    if row.status is None:
        return None
    if row.expires_at <= now:
        row.fingerprint = request_fingerprint
        row.status, row.answer = None, None
        row.created_at, row.expires_at = utc_clock(), utc_now(KEEP_SECONDS)
        session.flush()
        return None
    if row.fingerprint != request_fingerprint:
        raise ConflictError(
            "the key was used for another request", code="idempotency_mismatch", key=key
        )
    return StoredAnswer(row.status, row.answer or {})


def keep(
    session: Session, tenant_id: str, key: str, *, status: int, answer: dict[str, Any]
) -> None:
    """Store the answer under a key that this transaction has claimed."""
    row = session.get_one(IdempotencyRecord, (tenant_id, key))
    row.status = status
    row.answer = answer
    session.flush()


def forget_expired(session: Session, *, limit: int = FORGET_ROWS) -> int:
    """Delete up to `limit` answers that are kept no longer; returns how many."""
    keys = session.execute(
        sa.select(IdempotencyRecord.tenant_id, IdempotencyRecord.idempotency_key)
        .where(IdempotencyRecord.expires_at < utc_now())
        .order_by(IdempotencyRecord.expires_at)
        .limit(limit)
    ).all()
    for tenant_id, key in sorted(keys):
        session.execute(
            sa.delete(IdempotencyRecord).where(
                IdempotencyRecord.tenant_id == tenant_id,
                IdempotencyRecord.idempotency_key == key,
                IdempotencyRecord.expires_at < utc_now(),
            )
        )
    return len(keys)


def _insert_if_missing(
    session: Session, tenant_id: str, key: str, request_fingerprint: str
) -> None:
    values = {
        "tenant_id": tenant_id,
        "idempotency_key": key,
        "fingerprint": request_fingerprint,
        "created_at": utc_clock(),
        "expires_at": utc_now(KEEP_SECONDS),
    }
    if session.get_bind().dialect.name == "sqlite":
        session.execute(sqlite.insert(_TABLE).values(values).on_conflict_do_nothing())
        return
    # As for an object's row: the exclusive lock at once, not a shared one first.
    insert = mysql.insert(_TABLE).values(values)
    session.execute(insert.on_duplicate_key_update(fingerprint=_TABLE.c.fingerprint))
