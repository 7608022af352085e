"""A reviewer elsewhere: asked by a signed request, heard at once, by callback, or by asking again.

The step's row waits before the first byte goes out, so that a callback always finds it. The lease
is given back while nobody answers; the snooze looks at the row once more under its lock.
"""

from __future__ import annotations

import datetime as dt
import json
import random
from typing import Any

import structlog

from services.review.deps import Deps, Outside
from services.review.resting import Resting
from services.review.reviewers.finding import Finding, Outcome
from shared.catalog import fenced
from shared.catalog.asking import BY_DEADLINE, BY_POLL, BY_RESPONSE, Ask, AskStep
from shared.catalog.review_callbacks import MAX_ANSWER_BYTES, WebhookAnswer, parse_answer
from shared.catalog.review_cases import Case
from shared.catalog.review_content import content_path
from shared.catalog.reviewer_specs import WebhookSpec
from shared.catalog.webhook_reviewers import Door, find_door
from shared.core.clock import utc_now
from shared.core.errors import InvalidError, ThrottledError, UnavailableError
from shared.core.failpoints import failpoint
from shared.core.webhooks import sign
from shared.fetch import FetchError, FetchLimits, FetchRefused, FetchTooLarge
from shared.outbox import Execution, Snooze

_LIMITS = FetchLimits(max_body_bytes=MAX_ANSWER_BYTES, max_redirects=0)
_LATER = (408, 425, 429)
_TOO_MANY = 429
_SERVER_ERRORS = 500
#: Seconds that a reviewer may make us wait by what it says of itself.
_MOST_PATIENCE_SECONDS = 3600.0

_log = structlog.get_logger("review")


class _NoAnswer(Exception):
    """The reviewer has said that it cannot be asked like this; the text says how."""


def ask(execution: Execution, case: Case, spec: WebhookSpec, deps: Deps) -> Finding | Snooze:
    """Ask, or look whether there is an answer.

    Raises UnavailableError and ThrottledError while the question cannot be delivered.
    """
    asking = _Asking(execution, case, spec, deps)
    current = asking.begin()
    if current.is_open and current.left_seconds <= 0:
        current = asking.expire(current)
    if current.is_open:
        door = deps.db.run_session(asking.find_door, read_only=True)
        if door is None or deps.outside is None:
            current = asking.fail(current, f"the reviewer {spec.reviewer} cannot be asked here")
        elif (rest_seconds := deps.outside.rests.seconds(asking.reviewer)) > 0:
            return asking.wait(current, rest_seconds * random.uniform(1.0, 1.2), "has a rest")
        else:
            go_on = asking.poll if current.is_delivered else asking.deliver
            try:
                current = go_on(current, door, deps.outside)
            except Resting as error:
                return asking.wait(current, error.seconds, "has a rest")
    if current.is_open:
        return asking.wait(current, spec.poll_seconds, "answers later")
    return Finding(spec.name, Outcome(current.outcome), current.detail)


class _Asking:
    """One question on its way."""

    def __init__(self, execution: Execution, case: Case, spec: WebhookSpec, deps: Deps) -> None:
        self._execution, self._case, self._spec, self._deps = execution, case, spec, deps
        self._step = AskStep(
            case.review_id, spec.name, kind=spec.kind, deadline_seconds=spec.deadline_seconds
        )

    def find_door(self, session: Any) -> Door | None:
        """Return how the reviewer is reached, None when it is not there any more."""
        if self._deps.outside is None:
            return None
        box = self._deps.outside.secrets
        return find_door(session, box, self._case.tenant_id, self._spec.reviewer)

    def begin(self) -> Ask:
        """Let the row wait, before anything is sent."""
        current = self._write(self._step.begin)
        failpoint("review.after_waiting")
        return current

    def deliver(self, current: Ask, door: Door, outside: Outside) -> Ask:
        """Send the question, signed; the same id at every try."""
        body = json.dumps(self._question(current, outside)).encode()
        try:
            with outside.rests.asked(self.reviewer):
                answer = self._call("POST", door.url, door, current.ask_id, body, outside)
        except _NoAnswer as error:
            return self.fail(current, str(error))
        except (UnavailableError, ThrottledError) as error:
            detail = str(error)
            now = self._write(lambda s: self._step.undelivered(s, current.ask_id, detail))
            if not now.is_open:
                return now
            raise
        failpoint("review.after_ask")
        if answer is None:
            return self._write(lambda s: self._step.delivered(s, current.ask_id))
        return self._answer(current, answer, BY_RESPONSE)

    def poll(self, current: Ask, door: Door, outside: Outside) -> Ask:
        """Ask how far it is: a callback may be lost. A failure says nothing."""
        address = door.status_address(current.step_id)
        if address is None:
            return current
        try:
            with outside.rests.asked(self.reviewer):
                answer = self._call("GET", address, door, current.ask_id, b"", outside)
        except (_NoAnswer, UnavailableError, ThrottledError) as error:
            _log.info("review_poll_failed", step_id=current.step_id, error=str(error))
            return current
        return current if answer is None else self._answer(current, answer, BY_POLL)

    def expire(self, current: Ask) -> Ask:
        """End the wait: nobody has answered in time."""
        return self._write(
            lambda s: self._step.answered(
                s, current.ask_id, Outcome.ERROR, "no answer in time", BY_DEADLINE
            )
        )

    def fail(self, current: Ask, reason: str) -> Ask:
        """End the wait: it cannot be asked."""
        return self._write(
            lambda s: self._step.answered(s, current.ask_id, Outcome.ERROR, reason, BY_RESPONSE)
        )

    @property
    def reviewer(self) -> tuple[str, str]:
        """Whose reviewer it is, and its name."""
        return self._case.tenant_id, self._spec.reviewer

    def wait(self, current: Ask, at_most: float, reason: str) -> Snooze:
        """Give the lease back until a callback, the next look or the deadline."""
        failpoint("review.before_snooze")
        return Snooze(
            min(max(0.0, current.left_seconds), at_most),
            reason=f"{self._spec.name} {reason}",
            ready=self._step.has_answer,
        )

    def _answer(self, current: Ask, answer: WebhookAnswer, by: str) -> Ask:
        return self._write(
            lambda s: self._step.answered(s, current.ask_id, answer.outcome, answer.reason, by)
        )

    def _write(self, change: Any) -> Ask:
        found: Ask = fenced.fenced(
            self._execution, self._deps.db, lock=self._step.lock, body=change
        )
        return found

    def _question(self, current: Ask, outside: Outside) -> dict[str, Any]:
        case, path = self._case, f"/v1/review-callbacks/{current.step_id}"
        base = outside.callback_base.rstrip("/")
        deadline_at = current.deadline_at.replace(tzinfo=dt.UTC)
        content = content_path(
            outside.secrets, current.step_id, expires_at=int(deadline_at.timestamp())
        )
        return {
            "type": "review.requested",
            "step_id": current.step_id,
            "review_id": case.review_id,
            "version_id": case.version_id,
            "tenant_id": case.tenant_id,
            "sha256": case.sha256,
            "size": case.size_bytes,
            "content_type": case.content_type,
            "deadline_at": deadline_at.isoformat(),
            "content_path": content,
            "content_url": f"{base}{content}" if base else None,
            "callback_path": path,
            "callback_url": f"{base}{path}" if base else None,
        }

    def _call(
        self, method: str, url: str, door: Door, ask_id: str, body: bytes, outside: Outside
    ) -> WebhookAnswer | None:
        """Make one signed call; None says that the answer comes later."""
        stamp = int(utc_now().replace(tzinfo=dt.UTC).timestamp())
        headers = {
            **sign(door.secrets, message_id=ask_id, timestamp=stamp, body=body),
            "accept": "application/json",
            "user-agent": "cloudblox-review",
        }
        if body:
            headers["content-type"] = "application/json"
        try:
            with outside.fetch.open(
                method,
                url,
                headers=headers,
                body=body or None,
                limits=_LIMITS,
                deadline=self._execution.deadline.within(outside.call_seconds),
                check=self._execution.check,
            ) as answer:
                return _heard(method, answer.status, answer.headers, answer.read())
        except (FetchRefused, FetchTooLarge) as error:
            raise _NoAnswer(f"the reviewer cannot be asked: {error}") from error
        except FetchError as error:
            raise UnavailableError(
                f"the reviewer does not answer: {error}", code="reviewer_unavailable"
            ) from error


def _heard(method: str, status: int, headers: Any, body: bytes) -> WebhookAnswer | None:
    if status == 202 or (method == "GET" and status in (204, 404)):
        return None
    if status in (200, 201):
        try:
            return parse_answer(body)
        except InvalidError as error:
            raise _NoAnswer(f"the reviewer's answer is none: {error}") from error
    if status == _TOO_MANY or (status >= _SERVER_ERRORS and "retry-after" in headers):
        asked = headers.get("retry-after", "")
        seconds = (
            min(float(asked), _MOST_PATIENCE_SECONDS)
            if asked.isdecimal() and asked.isascii()
            else 1.0
        )
        raise ThrottledError(
            f"the reviewer answers {status}",
            code="reviewer_throttled",
            retry_after_seconds=seconds,
        )
    if status in _LATER or status >= _SERVER_ERRORS:
        raise UnavailableError(f"the reviewer answers {status}", code="reviewer_unavailable")
    raise _NoAnswer(f"the reviewer answers {status}")
