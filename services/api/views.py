"""Shapes that several areas answer with: times, pages, rows of the outbox."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any, Generic, TypeVar

import sqlalchemy as sa
from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

from shared.core.errors import InvalidError

T = TypeVar("T")

#: The largest id that a column holds.
MAX_ID = 2**63 - 1
#: Rows of a page when the client does not say.
DEFAULT_LIMIT = 100


def _iso(moment: dt.datetime) -> str:
    return moment.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


#: A naive UTC datetime of the tables, written as RFC 3339 with a Z.
Time = Annotated[dt.datetime, PlainSerializer(_iso, return_type=str)]

#: What stands in a name's place: columns of names hold ASCII only, and compare with nothing else.
NAME_PATTERN = r"^[ -~]*$"

NameCursor = Annotated[
    str,
    Query(
        max_length=64,
        pattern=NAME_PATTERN,
        description="`next_cursor` of the page before; without it the first.",
    ),
]
TenantFilter = Annotated[
    str | None,
    Query(
        max_length=64,
        pattern=NAME_PATTERN,
        description="Another tenant's; needs the scope `admin`.",
    ),
]

Limit = Annotated[int, Query(ge=1, le=1000, description="Most rows in this page.")]
Cursor = Annotated[
    int | None,
    Query(ge=1, le=MAX_ID, description="`next_cursor` of the page before; without it the first."),
]


class OrderBody(BaseModel):
    """Base of what is ordered: a name that it does not have is refused.

    To pass over `dry-run` where `dry_run` was meant would delete what was only to be counted.
    """

    model_config = ConfigDict(extra="forbid")


class View(BaseModel):
    """Base of what is answered: read from rows and objects alike."""

    model_config = ConfigDict(from_attributes=True)


class PageView(BaseModel, Generic[T]):
    """One page of a list. `next_cursor` is null at its end."""

    items: list[T]
    next_cursor: int | None = None


class TaskBrief(View):
    """A task in a list."""

    id: int
    queue: str
    region: str
    kind: str
    tenant_id: str
    state: str
    priority: int
    attempt: int = Field(description="Answers so far: retries and the end. Snoozes do not count.")
    max_attempts: int
    recoveries: int = Field(description="Executions lost in a row without an answer.")
    is_cancelling: bool = Field(
        description="A cancel was acknowledged; the task will not complete."
    )
    error_code: str | None
    error_detail: str | None
    resource_key: str | None = Field(
        description="What a blocked task is parked on: a channel without a free place, or broken."
    )
    due_at: Time
    created_at: Time
    started_at: Time | None
    finished_at: Time | None


def task_fields(row: sa.RowMapping) -> dict[str, Any]:
    """Return a row of `tasks` under the names of the views."""
    fields = {str(name): value for name, value in row.items()}
    fields["is_cancelling"] = bool(fields.pop("cancel_requested"))
    return fields


def to_naive_utc(moment: dt.datetime | None) -> dt.datetime | None:
    """Return what the tables compare with; a time without a zone is taken as UTC."""
    if moment is None or moment.tzinfo is None:
        return moment
    try:
        return moment.astimezone(dt.UTC).replace(tzinfo=None)
    except OverflowError as error:
        raise InvalidError("there is no such time in UTC", code="time_invalid") from error
