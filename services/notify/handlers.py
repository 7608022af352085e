"""Sends one event to one address, signed; says what became of it in the row.

At least once: a process that dies between the answer and its commit sends the same message again,
under the same id, by which a receiver knows it.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

import structlog
from sqlalchemy.orm import Session

from services.notify.rules import Meaning, Verdict, judge
from services.notify.turns import NoTurn, Turns
from shared.catalog import fenced
from shared.catalog.context import Catalogue
from shared.catalog.notifying.deliveries import (
    Message,
    delivered,
    is_rest_over,
    lock_delivery,
    read_message,
    refused,
)
from shared.catalog.notifying.waking import wake_deliveries
from shared.catalog.payloads import SendNotification
from shared.catalog.secret_box import SecretBox
from shared.core.clock import Deadline
from shared.core.errors import UnavailableError
from shared.core.failpoints import failpoint
from shared.core.outcomes import Fail, Retry, Snooze
from shared.core.webhooks import sign
from shared.fetch import Fetcher, FetchError, FetchLimits, FetchRefused
from shared.outbox import Execution
from shared.outbox.db import Database

#: Seconds that one exchange may take.
EXCHANGE_SECONDS = 15.0
#: Seconds that a delivery waits, at least and at most, when its address is busy with others.
_BUSY_SECONDS = (3.0, 10.0)
#: What a receiver says is not kept; a few bytes are read so that its answer is over.
_LIMITS = FetchLimits(max_body_bytes=64 * 1024, max_redirects=0)

_log = structlog.get_logger("notify")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deps:
    """What the handler works with."""

    db: Database
    catalogue: Catalogue
    secrets: SecretBox
    fetcher: Fetcher
    turns: Turns


def send(
    execution: Execution, payload: SendNotification, deps: Deps
) -> Retry | Snooze | Fail | None:
    """Send one delivery.

    Waits uncounted while its address has a rest, or is slow and busy with others; fails at once
    where the address is not allowed or its receiver has gone for good.
    """
    delivery_id = payload.delivery_id
    message = deps.db.run_session(
        lambda session: read_message(session, delivery_id, deps.secrets), read_only=True
    )
    if message is None:
        return Fail("gone", "the subscription is off or gone, or the event was sent already")
    if message.rest_seconds > 0:
        # Spread, so that an address that is well again is not met by all at once.
        wait = message.rest_seconds * random.uniform(1.0, 1.2)
        return Snooze(
            wait,
            reason="the address has a rest",
            ready=lambda session: is_rest_over(session, message.subscription_id),
        )
    failpoint("notify.before_send")
    try:
        with deps.turns.take(
            message.subscription_id, execution.task.tenant_id, is_in_doubt=message.is_in_doubt
        ):
            status, verdict = _exchange(execution, message, deps)
    except NoTurn:
        return Snooze(random.uniform(*_BUSY_SECONDS), reason="the address is busy, and slow")
    except FetchRefused as error:
        _note(execution, deps, delivery_id, None, Verdict(Meaning.AGAIN, error.code))
        return Fail(error.code, str(error))
    except FetchError as error:
        _note(execution, deps, delivery_id, None, Verdict(Meaning.AGAIN, error.code))
        return Retry(reason=str(error))
    failpoint("notify.after_send")
    if verdict.meaning is Meaning.ARRIVED:
        is_well_again = fenced.complete(
            execution,
            deps.db,
            lock=lambda session: lock_delivery(session, delivery_id),
            body=lambda tx: delivered(tx.session, delivery_id, status),
        )
        if is_well_again:
            _wake(execution, deps, message.subscription_id)
        return None
    _note(execution, deps, delivery_id, status, verdict)
    if verdict.meaning is Meaning.GONE:
        return Fail("gone", "the receiver wants nothing any more: the subscription is off")
    return Retry(verdict.after_seconds, reason=f"the receiver answered {status}")


def _wake(execution: Execution, deps: Deps, subscription_id: int) -> None:
    try:
        wake_deliveries(deps.db, deps.catalogue, execution.task.tenant_id, subscription_id)
    except UnavailableError as error:
        # What was to be done is done; the others wait for their own time.
        _log.warning("deliveries_not_woken", subscription_id=subscription_id, error=str(error))


def _exchange(execution: Execution, message: Message, deps: Deps) -> tuple[int, Verdict]:
    signed = sign(
        message.secrets,
        message_id=message.message_id,
        timestamp=int(time.time()),
        body=message.body,
    )
    with deps.fetcher.open(
        "POST",
        message.url,
        headers={"content-type": "application/json", **signed},
        body=message.body,
        limits=_LIMITS,
        deadline=Deadline(min(EXCHANGE_SECONDS, execution.deadline.remaining(EXCHANGE_SECONDS))),
        check=execution.check,
    ) as answer:
        return answer.status, judge(answer.status, answer.headers.get("retry-after"))


def _note(
    execution: Execution, deps: Deps, delivery_id: int, status: int | None, verdict: Verdict
) -> None:
    def write(session: Session) -> None:
        refused(
            session,
            delivery_id,
            status=status,
            code=verdict.code,
            is_gone=verdict.meaning is Meaning.GONE,
        )

    fenced.fenced(
        execution,
        deps.db,
        lock=lambda session: lock_delivery(session, delivery_id),
        body=write,
    )
