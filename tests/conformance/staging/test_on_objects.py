"""What only staging on an object store has: parts, memory, and uploads that a kill leaves."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from contextlib import ExitStack

import pytest

from shared.core.errors import InvalidError
from shared.storage.errors import ChannelError
from shared.storage.staging import Staging
from shared.storage.staging_parts import StagingBusy
from tests.conformance.staging.conftest import MIB, NODE, PART, PARTS_HELD
from tests.support.content import read, soon


def waited(future: Future[None] | None) -> bool:
    if future is None:
        return False
    future.result(60)
    return True


def has_all_places(objects: Staging) -> bool:
    """Tell whether so many parts as may be held can be filled at once."""
    with ExitStack() as stack:
        for _ in range(PARTS_HELD):
            stack.enter_context(objects.writer()).write(bytes(PART - 1))
    return True


def test_nothing_is_named_before_it_is_complete(objects: Staging) -> None:
    with objects.writer() as writer:
        writer.write(bytes(2 * PART + 1))
        assert list(objects.channel.list(deadline=soon())) == []
        assert writer.finish().size == 2 * PART + 1


def test_no_room_is_told_of_and_no_ratio(objects: Staging) -> None:
    assert objects.free_bytes() is None
    assert objects.used_ratio() is None


def test_whoever_waits_as_told_is_never_held_up(objects: Staging) -> None:
    data, waits = os.urandom(4 * PART + 5), 0
    with objects.writer() as writer:
        for start in range(0, len(data), MIB):
            while waited(writer.waits_for(MIB)):
                waits += 1
            writer.write(data[start : start + MIB])
        staged = writer.finish()
    assert waits >= 1
    assert read(objects, staged.key) == data


def test_what_a_process_holds_is_bounded_and_given_back(objects: Staging) -> None:
    bodies = [os.urandom(PART - 1) for _ in range(PARTS_HELD)]
    with ExitStack() as stack:
        slow = [stack.enter_context(objects.writer()) for _ in bodies]
        # The first of them stay in memory, the others go to the disk.
        for writer, body in zip(slow, bodies, strict=True):
            writer.write(body)
        late = stack.enter_context(objects.writer())
        with pytest.raises(StagingBusy):
            late.write(b"late")
        # What is small was held whole already: there is a place for it always.
        with objects.writer(declared_size=3) as writer:
            writer.write(b"abc")
            writer.finish()
        for writer, body in zip(slow, bodies, strict=True):
            assert read(objects, writer.finish().key) == body
    assert has_all_places(objects)


def test_a_process_without_threads_refuses_a_body_and_gives_its_place_back(
    objects: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with objects.writer() as writer, monkeypatch.context() as patch:
        patch.setattr("threading.Thread.start", start)
        with pytest.raises(StagingBusy):
            writer.write(bytes(PART + 1))
    assert has_all_places(objects)


def test_an_upload_tells_who_writes_it(objects: Staging) -> None:
    writer = objects.writer()
    writer.write(bytes(2 * PART + 1))
    waited(writer.waits_for(PART))
    (upload,) = objects.open_uploads(deadline=soon())
    assert objects.wrote(upload.key, frozenset({"other", NODE}))
    assert not objects.wrote(upload.key, frozenset({"other"}))
    writer.abort()
    assert list(objects.open_uploads(deadline=soon())) == []


def test_an_upload_that_was_swept_cannot_be_finished(objects: Staging) -> None:
    writer = objects.writer()
    writer.write(bytes(2 * PART + 1))
    waited(writer.waits_for(PART))
    for upload in objects.open_uploads(deadline=soon()):
        objects.channel.abort_upload(upload.key, upload.upload_id, deadline=soon())
    with pytest.raises((ChannelError, InvalidError)):
        writer.finish()
    assert list(objects.channel.list(deadline=soon())) == []
    assert list(objects.open_uploads(deadline=soon())) == []


def test_a_store_that_fails_in_the_middle_ends_the_body(
    objects: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = objects.writer()
    writer.write(bytes(2 * PART + 1))
    waited(writer.waits_for(PART))
    with monkeypatch.context() as patch:
        patch.setattr("shared.storage.staging_objects.CALL_SECONDS", 0.0)
        with pytest.raises(Exception, match="no time left"):
            writer.finish()
    assert list(objects.channel.list(deadline=soon())) == []
    # The abort had no time either: the sweep finds the upload.
    assert len(list(objects.open_uploads(deadline=soon()))) == 1
    assert has_all_places(objects)
