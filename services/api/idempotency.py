"""`Idempotency-Key` of a request: what it is, and doing its work once.

The rows are the catalogue's; this is where HTTP meets them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Depends, Header, Request
from sqlalchemy.orm import Session

from shared.catalog import idempotency
from shared.catalog.models import IdempotencyRecord, utc_now
from shared.core.errors import InvalidError


@dataclass(frozen=True, slots=True)
class Ticket:
    """One request that may come again."""

    key: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request was answered with: a status and a JSON document.

    `kept` is the document for the times after the first, where that must differ: a secret is shown
    once, and never stored. The staging files of `released` may be unlinked after the commit.
    """

    status: int
    document: dict[str, Any]
    kept: dict[str, Any] | None = None
    released: tuple[str, ...] = ()


async def read_ticket(
    request: Request,
    idempotency_key: Annotated[
        str | None,
        Header(description="Any text of the client's; the same request under it is done once."),
    ] = None,
) -> Ticket | None:
    """Return the ticket of this request, None when it carries no key."""
    if idempotency_key is None:
        return None
    key = idempotency_key.strip()
    if not 1 <= len(key) <= idempotency.MAX_KEY_CHARACTERS or not key.isascii():
        raise InvalidError(
            f"an Idempotency-Key has 1 to {idempotency.MAX_KEY_CHARACTERS} ASCII characters",
            code="idempotency_key_invalid",
        )
    body_sha256 = hashlib.sha256(await request.body()).hexdigest()
    target = request.scope["raw_path"] + b"?" + request.scope.get("query_string", b"")
    fingerprint = idempotency.fingerprint(request.method, target.decode("latin-1"), body_sha256)
    return Ticket(key, fingerprint)


TicketDep = Annotated[Ticket | None, Depends(read_ticket)]


def once(
    session: Session, tenant_id: str, ticket: Ticket | None, work: Callable[[], Answer]
) -> Answer:
    """Return the kept answer, or do `work` and keep its answer in the same transaction."""
    if ticket is None:
        return work()
    known = idempotency.claim(session, tenant_id, ticket.key, ticket.fingerprint)
    if known is not None:
        return Answer(known.status, known.answer)
    answer = work()
    kept = answer.document if answer.kept is None else answer.kept
    idempotency.keep(session, tenant_id, ticket.key, status=answer.status, answer=kept)
    return answer


def is_known(session: Session, tenant_id: str, ticket: Ticket) -> bool:
    """Tell, without a lock, whether this key has an answer: `once` will then give it, or refuse."""
    return bool(
        session.scalar(
            sa.select(
                sa.exists().where(
                    IdempotencyRecord.tenant_id == tenant_id,
                    IdempotencyRecord.idempotency_key == ticket.key,
                    IdempotencyRecord.expires_at > utc_now(),
                )
            )
        )
    )
