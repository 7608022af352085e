"""Listings: byte order, folding by delimiter, pages, on keys that collations would spoil."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import sqlalchemy as sa

from shared.catalog.listing import Listing, list_objects, successor
from shared.catalog.models import ObjectRow, utc_now
from shared.core.errors import InvalidError
from tests.support.catalogue import World

#: Case, blanks, accents composed and not, half and full width, astral, delimiters at every place.
ODD_KEYS = [
    *("A", "a", "B", "b", "a ", "a  ", " a", "é", "e\u0301", "E", "ａ", "ß", "ss", "\U0001f600"),
    *("\uffff", "a/b", "a/b/c", "a/b/", "a//b", "a/é", "a/e", "/", "//", "/a", "a0", "a.", "a-"),
    *("A/b", "ä/x", "a\u0308/x", "日本/語", "日本/誤", "日本", "x/y ", "x/y", "tab\there"),
    *("new\nline", "%2F", "z"),
]


def add(world: World, bucket: int, keys: list[str], *, listed: int = 1) -> None:
    """Insert object rows as `refresh` would leave them, many at once."""
    rows = [
        {
            "bucket_id": bucket,
            "key": key,
            "generation": 1,
            "served_version_id": number if listed else None,
            "is_listed": listed,
            "size_bytes": len(key.encode()) if listed else None,
            "etag": "e" if listed else None,
            "content_type": "t" if listed else None,
            "modified_at": utc_now() if listed else None,
            "created_at": utc_now(),
        }
        for number, key in enumerate(keys, start=1)
    ]

    def insert(session: sa.orm.Session) -> None:
        for start in range(0, len(rows), 500):
            session.add_all([ObjectRow(**row) for row in rows[start : start + 500]])
            session.flush()

    world.run(insert)


def page(world: World, bucket: int, **options: object) -> Listing:
    return world.db.run_session(
        lambda session: list_objects(session, bucket, **options),  # type: ignore[arg-type]
        read_only=True,
    )


def walk(world: World, bucket: int, **options: object) -> list[str]:
    """Return all entries over all pages, prefixes marked, in the order in which they come."""
    entries: list[str] = []
    cursor = None
    for _ in range(10_000):
        answer = page(world, bucket, cursor=cursor, **options)
        entries += [item.key for item in answer.items] + [f"P:{p}" for p in answer.prefixes]
        cursor = answer.next_cursor
        if cursor is None:
            return entries
        assert answer.count > 0
    raise AssertionError("the listing does not end")


def model(keys: list[str], prefix: str, delimiter: str) -> set[str]:
    """Return what a listing must give, from the definition."""
    entries = set()
    for key in keys:
        if not key.startswith(prefix):
            continue
        at = key.find(delimiter, len(prefix)) if delimiter else -1
        entries.add(key if at < 0 else f"P:{key[: at + len(delimiter)]}")
    return entries


def test_keys_come_in_the_order_of_their_bytes(world: World, bucket: int) -> None:
    add(world, bucket, ODD_KEYS)
    keys = [item.key for item in page(world, bucket).items]
    assert keys == sorted(ODD_KEYS, key=str.encode)


def test_items_carry_what_a_get_shows(world: World, bucket: int) -> None:
    answer = world.put(bucket, "k", b"hello")
    [item] = page(world, bucket).items
    readable = world.read(bucket, "k")
    assert (item.key, item.version_id, item.size, item.etag) == (
        "k",
        answer.version_id,
        5,
        answer.etag,
    )
    assert (item.content_type, item.modified_at) == (readable.content_type, readable.modified_at)
    world.store(answer.version_id)
    assert page(world, bucket).items == [item]


@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_pages_give_every_entry_once(world: World, bucket: int, limit: int) -> None:
    add(world, bucket, ODD_KEYS)
    for prefix in ("", "a", "a/", "日", "é", "x/y ", "none", "/", "\uffff"):
        for delimiter in ("", "/", "b", "//", "é", "本/"):
            entries = walk(world, bucket, prefix=prefix, delimiter=delimiter, limit=limit)
            assert len(entries) == len(set(entries)), (prefix, delimiter)
            assert set(entries) == model(ODD_KEYS, prefix, delimiter), (prefix, delimiter)


def test_a_page_is_in_byte_order_and_pages_follow_each_other(world: World, bucket: int) -> None:
    add(world, bucket, ODD_KEYS)
    last, cursor = b"", None
    while True:
        answer = page(world, bucket, delimiter="/", cursor=cursor, limit=4)
        entries = sorted(
            [item.key.encode() for item in answer.items] + [p.encode() for p in answer.prefixes]
        )
        assert [item.key for item in answer.items] == sorted(
            (item.key for item in answer.items), key=str.encode
        )
        assert all(a < b for a, b in pairwise([last, *entries])), (last, entries)
        last, cursor = entries[-1], answer.next_cursor
        if cursor is None:
            return


def test_random_trees_agree_with_the_definition(world: World, bucket: int) -> None:
    rng = random.Random(7)
    keys = sorted(
        {
            "/".join(rng.choice(["a", "b", "ab", "é", "A", " ", "0"]) for _ in range(depth))
            for depth in (1, 2, 3, 4)
            for _ in range(120)
        }
    )
    add(world, bucket, keys)
    for _ in range(25):
        prefix = rng.choice(["", "a", "a/", "a/b", "é/", "ab/a/"])
        delimiter = rng.choice(["", "/", "/a", "b"])
        limit = rng.choice([1, 7, 33, 1000])
        entries = walk(world, bucket, prefix=prefix, delimiter=delimiter, limit=limit)
        assert len(entries) == len(set(entries))
        assert set(entries) == model(keys, prefix, delimiter)


def test_unreadable_keys_and_other_buckets_are_not_listed(world: World, bucket: int) -> None:
    other = world.bucket("other")
    world.put(other, "theirs")
    world.put_stored(bucket, "gone")
    world.delete(bucket, "gone")
    world.put(bucket, "here")
    assert [item.key for item in page(world, bucket).items] == ["here"]


def test_a_key_that_comes_or_goes_between_pages_disturbs_no_other(
    world: World, bucket: int
) -> None:
    add(world, bucket, ["a", "b", "c", "d"])
    first = page(world, bucket, limit=2)
    world.delete(bucket, "c")
    add(world, bucket, ["0", "bb"])
    second = page(world, bucket, limit=9, cursor=first.next_cursor)
    assert [item.key for item in first.items + second.items] == ["a", "b", "c", "d"]


def test_a_cursor_of_somebody_else_is_refused(world: World, bucket: int) -> None:
    for cursor in ("ä", "a b", "!!", "a"):
        with pytest.raises(InvalidError) as caught:
            page(world, bucket, cursor=cursor)
        assert caught.value.code == "cursor_invalid"


def test_prefix_that_is_no_unicode_is_refused(world: World, bucket: int) -> None:
    with pytest.raises(InvalidError):
        page(world, bucket, prefix="\ud800")


def test_successor_is_the_first_thing_behind_a_prefix() -> None:
    assert successor(b"a/") == b"a0"
    assert successor(b"a\xff") == b"b"
    assert successor(b"\xff\xff") is None
    assert successor(b"") is None


def test_large_folders_are_jumped_over(world: World, bucket: int) -> None:
    keys = [f"folder-{f:02}/{n:04}" for f in range(20) for n in range(300)]
    add(world, bucket, keys)
    statements: list[str] = []
    sa.event.listen(world.engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    answer = page(world, bucket, delimiter="/")
    assert answer.prefixes == [f"folder-{f:02}/" for f in range(20)]
    looks = [text for text in statements if "object_key" in text]
    # Each look reads few rows: never one row per key of a folder.
    assert len(looks) <= 25


@pytest.mark.databases("mariadb")
def test_a_listing_walks_one_index_without_sorting(world: World, bucket: int) -> None:
    add(world, bucket, [f"k{n:05}" for n in range(3000)])
    add(world, bucket, [f"gone{n:05}" for n in range(3000)], listed=0)
    seen: list[tuple[str, object]] = []
    sa.event.listen(
        world.engine, "before_cursor_execute", lambda *args: seen.append((args[2], args[3]))
    )
    page(world, bucket, prefix="k", limit=50)
    text, parameters = next((t, p) for t, p in seen if "object_key" in t)
    with world.engine.connect() as connection:
        connection.exec_driver_sql("ANALYZE TABLE objects").all()
        [plan] = connection.exec_driver_sql(f"EXPLAIN {text}", parameters).mappings().all()
        assert plan["key"] == "ix_objects_listing"
        assert "filesort" not in plan["Extra"]
        connection.exec_driver_sql("FLUSH STATUS")
        connection.exec_driver_sql(text, parameters).all()
        reads = connection.exec_driver_sql("SHOW STATUS LIKE 'Handler_read%%'").all()
        assert sum(int(value) for _, value in reads) <= 2 * 51
