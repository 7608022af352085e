"""The two ways to carry out a POST once: in one transaction, or around work that has its own."""

from __future__ import annotations

from collections.abc import Callable

from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from services.api.deps import Caller
from services.api.idempotency import Answer, Ticket, is_known, once
from services.api.storing import discard
from shared.catalog.accounts import Principal
from shared.core.errors import ConflictError


async def write_once(
    caller: Caller,
    scope: str,
    ticket: Ticket | None,
    work: Callable[[Session, Principal], Answer],
) -> JSONResponse:
    """Do `work` and keep its answer in one transaction; a repeated request gets that answer.

    The staging files that the answer releases go after the commit. They come with the answer: a try
    that was undone must release none.
    """

    def transaction(session: Session, principal: Principal) -> Answer:
        return once(session, principal.tenant_id, ticket, lambda: work(session, principal))

    answer = await caller.write(scope, transaction)
    if answer.released:
        staging = caller.api.deps.staging
        await caller.api.work.clean_up(lambda: discard(staging, *answer.released))
    return _response(answer)


async def has_answer(caller: Caller, scope: str, ticket: Ticket | None) -> bool:
    """Tell whether `write_once` will give an earlier answer, or refuse, without any work."""
    if ticket is None:
        return False
    return await caller.read(
        scope, lambda session, principal: is_known(session, principal.tenant_id, ticket)
    )


async def act_once(
    caller: Caller, scope: str, ticket: Ticket | None, act: Callable[[Principal], Answer]
) -> JSONResponse:
    """Do `act`, which opens its own transactions, and keep its answer after it.

    A death in between forgets the key, not the effect: the request then meets the state it made.
    """

    def look(session: Session, principal: Principal) -> tuple[Principal, bool]:
        return principal, ticket is not None and is_known(session, principal.tenant_id, ticket)

    async def once_more() -> bool:
        return (await caller.read(scope, look))[1]

    principal, is_repeated = await caller.read(scope, look)
    if ticket is None:
        return _response(await caller.api.work.call(lambda: act(principal)))
    # The same request twice at once: the second waits, and finds the answer of the first.
    async with caller.api.turns.of((principal.tenant_id, ticket.key)):
        answer = None
        if not is_repeated and not await once_more():
            try:
                answer = await caller.api.work.call(lambda: act(principal))
            except ConflictError:
                # Perhaps with what the first one has done through another process.
                if not await once_more():
                    raise
        kept = await caller.api.work.write(
            lambda session: once(session, principal.tenant_id, ticket, lambda: _answered(answer))
        )
    return _response(kept)


def _answered(answer: Answer | None) -> Answer:
    if answer is None:
        raise LookupError("the answer expired between the look and the claim")
    return answer


def _response(answer: Answer) -> JSONResponse:
    return JSONResponse(answer.document, status_code=answer.status)
