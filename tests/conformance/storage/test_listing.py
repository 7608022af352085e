"""Listings: complete, in order, and never silently short."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from shared.core.clock import Deadline
from shared.storage.channel import Channel
from tests.support.content import put

#: Neighbours that sort differently by bytes, by folder and by letter.
KEYS = ["a", "b!", "b.c/d", "b/x", "b/y/z", "b0", "ba", "Ä/ö", "z/1", "z/10", "z/2", "文/件"]
IN_ORDER = sorted(KEYS, key=lambda key: key.encode())


def keys(channel: Channel, deadline: Deadline, prefix: str = "", after: str = "") -> list[str]:
    return [entry.key for entry in channel.list(prefix, after=after, deadline=deadline)]


def test_an_empty_channel_lists_nothing(channel: Channel, deadline: Deadline) -> None:
    assert keys(channel, deadline) == []


def test_keys_come_in_byte_order(channel: Channel, deadline: Deadline) -> None:
    for key in KEYS:
        put(channel, key, key.encode())
    entries = list(channel.list(deadline=deadline))
    assert [entry.key for entry in entries] == IN_ORDER
    assert [entry.size for entry in entries] == [len(key.encode()) for key in IN_ORDER]
    assert all(entry.modified_at.tzinfo is None for entry in entries)


def test_prefix_and_after_cut_the_listing(channel: Channel, deadline: Deadline) -> None:
    for key in KEYS:
        put(channel, key, b"")
    for prefix in ["", "b", "b/", "b/y/z", "z/1", "zz", "文/件", "b/x/nothing"]:
        for after in ["", "b/x", "b/y", "b0", "z/1", "文/件", "b/"]:
            expected = [
                key for key in IN_ORDER if key.startswith(prefix) and key.encode() > after.encode()
            ]
            assert keys(channel, deadline, prefix, after) == expected, (prefix, after)


def test_a_listing_goes_over_many_pages(channel: Channel, deadline: Deadline) -> None:
    expected = [f"page/{number:04}" for number in range(12)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda key: put(channel, key, b""), expected))
    assert keys(channel, deadline) == expected
    assert keys(channel, deadline, after="page/0005") == expected[6:]


def test_what_stays_is_listed_while_others_come_and_go(
    channel: Channel, deadline: Deadline
) -> None:
    staying = [f"stay/{number:02}/{number}" for number in range(20)]
    for key in staying:
        put(channel, key, b"")
    stop = threading.Event()
    errors: list[BaseException] = []

    def disturb(lane: int) -> None:
        try:
            number = 0
            while not stop.is_set():
                key = f"stay/{number % 20:02}/new-{lane}-{number}"
                put(channel, key, b"x")
                channel.delete(key, deadline=deadline)
                number += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=disturb, args=(lane,)) for lane in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            seen = keys(channel, deadline)
            assert set(staying) <= set(seen)
            assert seen == sorted(seen)
            assert len(seen) == len(set(seen))
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert errors == []
