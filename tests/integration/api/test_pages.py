"""Lists: their pages have every row once, and a page costs as many statements as a single row."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import (
    BackupRun,
    Base,
    Blob,
    Bucket,
    Location,
    LocationAudit,
    Loss,
    Replica,
    Restore,
    RestoreItem,
    ReviewRun,
    Version,
)
from shared.outbox.schema import UTCDateTime, nodes
from tests.integration.api.stack import BUCKET, CHANNEL, TENANT, Stack

pytestmark = pytest.mark.databases("sqlite")

Add = Callable[["Lists", int], object]


class Lists:
    """A stack, an admin's client of it, and how rows come into its lists."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.client = stack.client("admin")
        self.numbers = itertools.count(1)
        self.is_first = True
        with Session(stack.engine) as session:
            query = sa.select(Bucket.id).where(Bucket.name == BUCKET, Bucket.tenant_id == TENANT)
            self.bucket_id = session.scalars(query).one()

    def row(self, model: type[Base], **values: Any) -> None:
        """Insert a row; what must have a value and has none here gets one of its type."""
        table = model.__table__
        for column in table.columns:
            if not column.nullable and column.server_default is None and column.name != "id":
                name = str(sa.inspect(model).get_property_by_column(column).key)
                values.setdefault(name, _sample(column.type))
        with Session(self.stack.engine) as session, session.begin():
            session.add(model(**values))

    def post(self, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        answer = self.client.post(path, json=body)
        assert answer.is_success, answer.text
        return answer

    def put(self, path: str, **options: Any) -> httpx.Response:
        answer = self.client.put(path, **options)
        assert answer.is_success, answer.text
        return answer

    @contextmanager
    def counting(self) -> Iterator[list[str]]:
        """Collect the statements that are sent meanwhile."""
        seen: list[str] = []

        def note(_c: Any, _k: Any, statement: str, *_rest: Any) -> None:
            seen.append(statement)

        sa.event.listen(self.stack.engine, "before_cursor_execute", note)
        try:
            yield seen
        finally:
            sa.event.remove(self.stack.engine, "before_cursor_execute", note)


def _sample(kind: Any) -> Any:
    if isinstance(kind, UTCDateTime):
        return dt.datetime(2030, 1, 1)
    if isinstance(kind, sa.Integer):
        return 1
    return {} if isinstance(kind, sa.JSON) else "x"


def _object(lists: Lists, number: int) -> None:
    lists.put(f"/buckets/{BUCKET}/objects/key-{number}", content=b"%d" % number)


def _hold(lists: Lists, number: int) -> None:
    _object(lists, number)
    with lists.stack.engine.begin() as connection:
        connection.execute(sa.update(Version).values(state="stored"))
        connection.execute(sa.update(Blob).values(state="live"))
    lists.post(f"/buckets/{BUCKET}/holds", {"key": f"key-{number}", "reason": "why"})


def _subscription(lists: Lists, number: int) -> None:
    lists.put(f"/buckets/bucket-{number}", json={"channels": [CHANNEL]})
    body = {"url": "http://127.0.0.1:9/", "events": ["object.stored"], "bucket": f"bucket-{number}"}
    lists.post("/subscriptions", body)


def _delivery(lists: Lists, number: int) -> None:
    if lists.is_first:
        lists.post("/subscriptions", {"url": "http://127.0.0.1:9/", "events": ["object.stored"]})
    lists.post("/subscriptions/1:test")


def _upload(lists: Lists, number: int) -> None:
    body = {"operation_id": f"op-{number}", "bucket": BUCKET, "key": f"k-{number}", "size": 9}
    lists.post("/uploads", body)


def _review(lists: Lists, number: int) -> None:
    if lists.is_first:
        lists.stack.make_reviewed_bucket("reviewed")
    lists.put(f"/buckets/reviewed/objects/{number}", content=b"%d" % number)


def _replica(lists: Lists, number: int) -> None:
    _object(lists, number)
    with lists.stack.engine.connect() as connection:
        blob_id = connection.scalar(sa.select(sa.func.max(Blob.id)))
    lists.row(Replica, tenant_id=TENANT, blob_id=blob_id, channel="far", state="pending", reason="")


def _audit(lists: Lists, number: int) -> None:
    put = lists.put(f"/buckets/{BUCKET}/objects/{number}", content=b"%d" % number)
    lists.post(f"/tasks/{put.json()['task_id']}:cancel", {})


def _node(lists: Lists, number: int) -> None:
    row = {"node": f"n-{number}", "region": "", "role": "worker", "queues": ["upload"]}
    numbers = {"threads": 1, "threads_busy": 0, "mean_seconds": {}, "version": ""}
    moments = {"started_at": dt.datetime(2030, 1, 1), "last_seen": dt.datetime(2030, 1, 1)}
    with lists.stack.engine.begin() as connection:
        connection.execute(sa.insert(nodes).values(**row, **numbers, **moments))


def _rows(model: type[Base], unique: str = "", **values: Any) -> Add:
    """Return how rows of a table are added that differ in one column."""

    def add(lists: Lists, number: int) -> None:
        own = {"bucket_id": lists.bucket_id} if hasattr(model, "bucket_id") else {}
        more = {"tenant_id": TENANT} if hasattr(model, "tenant_id") else {}
        name = {}
        if unique:
            is_number = isinstance(getattr(model, unique).type, sa.Integer)
            name = {unique: number if is_number else f"x-{number}"}
        lists.row(model, **{**own, **more, **name, **values})

    return add


def _restore_item(lists: Lists, number: int) -> None:
    if lists.is_first:
        _rows(Restore, state="open")(lists, number)
    lists.row(RestoreItem, restore_id=1, position=number, outcome="restored")


_LISTS: dict[str, Add] = {
    f"/buckets/{BUCKET}/objects": _object,
    f"/buckets/{BUCKET}/backups": _rows(BackupRun, "slot", state="open"),
    f"/buckets/{BUCKET}/restores": _rows(Restore, state="open"),
    f"/buckets/{BUCKET}/restores/1/items": _restore_item,
    f"/buckets/{BUCKET}/re-reviews": _rows(ReviewRun),
    f"/buckets/{BUCKET}/removals": lambda lists, number: lists.post(
        f"/buckets/{BUCKET}/removals", {"prefix": str(number)}
    ),
    "/losses": _rows(Loss, "location_id", state="open"),
    "/holds": _hold,
    "/subscriptions": _subscription,
    "/deliveries?subscription=1": _delivery,
    "/uploads": _upload,
    "/reviews": _review,
    "/replicas": _replica,
    "/parked-deletions": _rows(Location, "key", state="delete_failed"),
    "/channel-audits": _rows(LocationAudit, "channel"),
    "/buckets": lambda lists, number: lists.stack.make_bucket(f"b-{number}"),
    "/tenants": lambda lists, number: lists.post("/tenants", {"id": f"t-{number}"}),
    f"/tenants/{TENANT}/keys": lambda lists, number: lists.stack.client("objects:read"),
    "/channels": lambda lists, number: lists.put(
        f"/channels/c-{number}", json={"kind": "file", "settings": {"root": f"/c-{number}"}}
    ),
    "/reviewers": lambda lists, number: lists.put(
        f"/reviewers/r-{number}", json={"url": "http://127.0.0.1:9/"}
    ),
    "/regions": lambda lists, number: lists.stack.make_bucket(f"b-{number}", region=f"r-{number}"),
    "/nodes": _node,
    "/queues": _node,
    "/tasks": _object,
    "/audit": _audit,
}
#: A queue has one row, however many consume it.
_ONE_ROW = {"/queues"}
_MORE = 5


def test_a_page_costs_what_a_row_costs_and_pages_have_every_row_once(stack: Stack) -> None:
    lists = Lists(stack)
    faults = {path: fault for path, add in _LISTS.items() if (fault := _look(lists, path, add))}
    assert faults == {}


def _look(lists: Lists, path: str, add: Add) -> str:
    lists.is_first = True
    add(lists, next(lists.numbers))
    with lists.counting() as few:
        before = _get(lists, path)
    lists.is_first = False
    for _ in range(_MORE):
        add(lists, next(lists.numbers))
    with lists.counting() as many:
        page = _get(lists, path)
    if path not in _ONE_ROW and len(page["items"]) != len(before["items"]) + _MORE:
        return f"{len(before['items'])} rows, then {len(page['items'])}"
    if len(many) != len(few):
        return f"{len(few)} statements, for {_MORE} rows more {len(many)}: {many[len(few) :]}"
    if "next_cursor" in page and _walk(lists, path) != page["items"]:
        return "its pages have other rows than the whole"
    return ""


def _get(lists: Lists, path: str, **params: Any) -> dict[str, Any]:
    answer = lists.client.get(path, params=params or None)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def _walk(lists: Lists, path: str) -> list[Any]:
    """Return what pages of two rows have."""
    found: list[Any] = []
    path, _, query = path.partition("?")
    params: dict[str, Any] = dict(part.split("=") for part in query.split("&") if part)
    while True:
        page = _get(lists, path, **params, limit=2)
        assert len(page["items"]) <= 2
        found += page["items"]
        if page["next_cursor"] is None:
            return found
        params["cursor"] = page["next_cursor"]
