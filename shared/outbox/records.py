"""What is written beside a task row: ended attempts, events and audit rows.

All of it goes into the transaction that makes the change, so that the records never tell more or
less than happened. Texts are cut and cleaned here: a strange error message must not keep an answer
from being written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import structlog

from shared.core.errors import InvalidError
from shared.outbox.statements import end as statements

if TYPE_CHECKING:
    from shared.outbox.dialect import Dialect
    from shared.outbox.rows import TaskRow

#: Events that the outbox writes. A stream of a task's events closes after one of `END_EVENTS`.
END_EVENTS = frozenset({"completed", "failed", "cancelled"})
OWN_EVENTS = END_EVENTS | {
    "retry",
    "snoozed",
    "parked",
    "given_back",
    "lease_lost",
    "cancel_requested",
    "manual_retry",
    "scheduled",
    "pending",
    "blocked",
    "dispatching",
    "dispatched",
    "running",
}
#: Bytes of JSON that one event or one result may have: facts and references, never content.
MAX_EVENT_BYTES = 16 * 1024
MAX_RESULT_BYTES = 64 * 1024
#: Characters kept of an error's text.
MAX_DETAIL = 4000
MAX_CODE = 64
#: How deep JSON may be nested: MariaDB takes 32 levels, and the row's own envelope is one.
MAX_DEPTH = 30

_EVENT_TYPE = re.compile(r"[a-z][a-z0-9_.-]{0,31}\Z")
#: A string, or a bracket outside of strings.
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]')
_log = structlog.get_logger("outbox.records")

#: (task id, type, data as JSON)
Event: TypeAlias = tuple[int, str, str]


def clean_code(code: str | None) -> str | None:
    """Return an error code that the column can hold."""
    if code is None:
        return None
    return code.encode("ascii", "replace").decode("ascii")[:MAX_CODE]


def clean_text(text: str | None, length: int = MAX_DETAIL) -> str | None:
    """Return a text that the database accepts: cut, and without what is not a character."""
    if text is None:
        return None
    return text[:length].encode("utf-8", "replace").decode("utf-8").replace("\x00", "�")


def json_text(value: Any) -> str:
    """Return JSON that every database takes.

    Raises ValueError or TypeError for what is none, or is nested too deeply, or holds half of a
    surrogate pair.
    """
    text = json.dumps(value, allow_nan=False)
    if "\\ud" in text:
        json.dumps(value, ensure_ascii=False).encode()
    check_depth(text)
    return text


def check_depth(text: str) -> None:
    """Raise ValueError for JSON that is nested too deeply for a database."""
    if text.count("{") + text.count("[") <= MAX_DEPTH:
        return
    depth = 0
    for mark in _BRACKETS.finditer(text):
        if mark[0] in "{[":
            depth += 1
            if depth > MAX_DEPTH:
                raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
        elif mark[0] in "}]":
            depth -= 1


def result_text(result: Mapping[str, Any] | None, *, task_id: int) -> str | None:
    """Return a handler's result as JSON.

    A result that cannot be written is dropped with a warning: the work is done all the same.
    """
    if result is None:
        return None
    try:
        text = json_text(result)
    except (TypeError, ValueError, RecursionError) as error:
        _log.warning("result_dropped", task_id=task_id, error=str(error))
        return None
    if len(text) > MAX_RESULT_BYTES:
        _log.warning("result_dropped", task_id=task_id, bytes=len(text))
        return None
    return text


def progress_event(task_id: int, type: str, data: Mapping[str, Any]) -> Event:  # noqa: A002
    """Return a handler's own event.

    Raises InvalidError for a type that the outbox writes itself, or data that does not fit.
    """
    if not _EVENT_TYPE.match(type) or type in OWN_EVENTS:
        raise InvalidError(f"{type!r} cannot be the type of a progress event", task_id=task_id)
    try:
        text = json_text(data)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidError(f"event {type}: the data is not JSON: {error}") from error
    if len(text) > MAX_EVENT_BYTES:
        raise InvalidError(f"event {type}: larger than {MAX_EVENT_BYTES} bytes", task_id=task_id)
    return task_id, type, text


def add_events(cursor: Any, dialect: Dialect, events: Sequence[Event]) -> None:
    """Write events in one statement. The tasks' rows must be locked, so that ids follow commits."""
    if not events:
        return
    marks = ",".join([dialect.sql(statements.EVENT)] * len(events))
    cursor.execute(statements.INSERT_EVENTS + marks, [value for event in events for value in event])


def add_event(
    cursor: Any,
    dialect: Dialect,
    task_id: int,
    type: str,  # noqa: A002
    data: Mapping[str, Any],
) -> None:
    """Write one event of the outbox's own; see `add_events`."""
    add_events(cursor, dialect, [(task_id, type, json.dumps(data))])


def add_moves(
    cursor: Any,
    dialect: Dialect,
    ids: Sequence[int],
    dispatches: Sequence[str],
    kinds: Sequence[str],
    *,
    source: str,
    target: str,
) -> None:
    """Record that those of these rows that are of `kinds` have just moved to `target`.

    The rows are known by their ids and dispatch ids. Call it in the transaction of the move, which
    holds their locks. Costs nothing without kinds.
    """
    if not ids or not kinds:
        return
    text = dialect.sql_ids(
        statements.INSERT_MOVES, ids=len(ids), dispatches=len(dispatches), kinds=len(kinds)
    )
    data = json.dumps({"from": source, "to": target})
    cursor.execute(text, [target, data, *ids, target, *dispatches, *kinds])


def add_attempt(
    cursor: Any,
    dialect: Dialect,
    row: TaskRow,
    *,
    attempt: int,
    outcome: str,
    code: str | None,
    detail: str | None,
    at_its_end: bool = False,
) -> None:
    """Keep an ended attempt of this row, which ends now, or ended when the row did."""
    ended_at = row.finished_at if at_its_end and row.finished_at is not None else row.now
    cursor.execute(
        dialect.sql(statements.INSERT_ATTEMPT),
        (
            row.id,
            attempt,
            row.fence,
            row.owner,
            outcome,
            clean_code(code),
            clean_text(detail),
            None if row.started_at is None else dialect.from_time(row.started_at),
            dialect.from_time(ended_at),
        ),
    )


def has_attempt(cursor: Any, dialect: Dialect, row: TaskRow, outcome: str) -> bool:
    """Tell whether this very end of the row is kept already."""
    cursor.execute(dialect.sql(statements.FIND_ATTEMPT), (row.id, row.fence, row.attempt, outcome))
    return cursor.fetchone() is not None


def add_audit(
    cursor: Any,
    dialect: Dialect,
    row: TaskRow,
    *,
    action: str,
    by: str,
    reason: str,
    state_after: str,
) -> None:
    """Write down a manual action: who, what, why."""
    cursor.execute(
        dialect.sql(statements.INSERT_AUDIT),
        (
            row.id,
            row.tenant_id,
            action,
            clean_text(by, 128),
            clean_text(reason, 512),
            row.state.value,
            state_after,
        ),
    )
