"""Transfers between directories: parts, checkpoints, resumption, proof, faults."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from shared.core.clock import Deadline
from shared.core.errors import CancelRequested, LeaseLost
from shared.storage.body import Body
from shared.storage.errors import (
    ChannelError,
    ChannelFull,
    ChannelTimeout,
    ChannelUnavailable,
    ChecksumMismatch,
    DeadlinePassed,
    ObjectMissing,
    SourceError,
    SourceUnavailable,
)
from shared.storage.faulty import FaultyChannel
from shared.storage.file import FileChannel
from shared.storage.progress import Progress
from shared.storage.registry import OpenChannel
from shared.storage.source import ChannelSource, Source
from shared.storage.spec import Tuning
from shared.storage.transfer import Transferred, transfer
from shared.storage.verify import verify
from tests.support.content import put, read, sha256
from tests.support.eventually import eventually

PART = 64 * 1024
DATA = os.urandom(5 * PART + 100)


class Setting:
    """A source directory, a target directory with switches, and what a handler would keep."""

    def __init__(self, tmp_path: Path) -> None:
        self.origin = self._directory(tmp_path / "origin")
        self.source_faults = FaultyChannel(self.origin)
        self.target = FaultyChannel(self._directory(tmp_path / "target"))
        self.opened = self.open()
        self.saved: list[Progress] = []
        put(self.origin, "from", DATA)
        self.source: Source = ChannelSource(self.source_faults, "from")

    def _directory(self, path: Path) -> FileChannel:
        channel = FileChannel(path, name=path.name)
        channel.prepare(deadline=Deadline(30))
        return channel

    def open(self, *, parallel_parts: int = 1, bytes_per_second: int = 0) -> OpenChannel:
        return OpenChannel.around(
            self.target,
            Tuning(
                part_bytes=PART,
                parallel_parts=parallel_parts,
                bandwidth_bytes_per_second=bytes_per_second,
            ),
        )

    def transfer(
        self,
        *,
        source: Source | None = None,
        data: bytes = DATA,
        size: int | None = None,
        resume: Progress | None = None,
        save: Callable[[Progress], None] | None = None,
        check: Callable[[], None] = lambda: None,
        deadline: Deadline | None = None,
        stall_seconds: float = 60.0,
    ) -> Transferred:
        return transfer(
            source or self.source,
            self.opened,
            "to",
            size=len(data) if size is None else size,
            sha256=sha256(data),
            resume=resume,
            save=save or self.saved.append,
            check=check,
            deadline=deadline or Deadline(60),
            stall_seconds=stall_seconds,
        )

    def parts_sent(self) -> int:
        return self.target.calls["put_part"]


@pytest.fixture
def at(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def test_a_large_body_goes_in_parts_and_is_proven(at: Setting) -> None:
    done = at.transfer()
    assert (done.key, done.size, done.sha256) == ("to", len(DATA), sha256(DATA))
    assert (done.parts_sent, done.parts_kept, done.bytes_sent) == (6, 0, len(DATA))
    assert read(at.target, "to") == DATA
    assert [p.parts_done for p in at.saved] == [0, 1, 2, 3, 4, 5, 6]
    assert [p.bytes_done for p in at.saved][-2:] == [5 * PART, len(DATA)]
    assert len({p.upload_id for p in at.saved}) == 1
    assert list(at.target.list_uploads(deadline=Deadline(30))) == []


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART])
def test_a_small_body_is_one_put(at: Setting, size: int) -> None:
    put(at.origin, "small", DATA[:size])
    done = at.transfer(source=ChannelSource(at.origin, "small"), data=DATA[:size])
    assert read(at.target, "to") == DATA[:size]
    assert (done.parts_sent, done.bytes_sent) == (1, size)
    assert at.saved == []
    assert at.target.calls["create_upload"] == 0


def test_parts_may_run_at_the_same_time(at: Setting) -> None:
    at.opened = at.open(parallel_parts=3)
    gate = at.target.hold("put_part")
    results: list[Transferred] = []
    thread = threading.Thread(target=lambda: results.append(at.transfer()))
    thread.start()
    assert gate.reached.wait(10)
    eventually(lambda: len(at.saved) == 6, message="the others pass the part that hangs")
    assert [p.parts_done for p in at.saved] == [0, 1, 2, 3, 4, 5]
    gate.release()
    thread.join(30)
    assert results[0].parts_sent == 6
    assert read(at.target, "to") == DATA


def stop_after(parts: int, at: Setting, error: Exception) -> Callable[[Progress], None]:
    def save(progress: Progress) -> None:
        at.saved.append(progress)
        if progress.parts_done == parts:
            raise error

    return save


def test_a_transfer_that_was_cut_short_goes_on_without_sending_parts_again(at: Setting) -> None:
    with pytest.raises(LeaseLost):
        at.transfer(save=stop_after(4, at, LeaseLost()))
    assert at.parts_sent() == 4
    saved = Progress.from_json(at.saved[-1].to_json())
    done = at.transfer(resume=saved)
    assert (done.parts_sent, done.parts_kept) == (2, 4)
    assert done.bytes_sent == PART + 100
    assert at.parts_sent() == 6
    assert read(at.target, "to") == DATA


def test_a_part_that_arrived_after_the_checkpoint_is_not_sent_again_either(at: Setting) -> None:
    with pytest.raises(LeaseLost):
        at.transfer(save=stop_after(4, at, LeaseLost()))
    done = at.transfer(resume=at.saved[0])
    assert (done.parts_sent, done.parts_kept) == (2, 4)


def test_a_transfer_goes_on_with_the_part_size_it_began_with(at: Setting) -> None:
    with pytest.raises(LeaseLost):
        at.transfer(save=stop_after(2, at, LeaseLost()))
    at.opened = OpenChannel.around(at.target, Tuning(part_bytes=2 * PART))
    done = at.transfer(resume=at.saved[-1])
    assert (done.parts_sent, done.parts_kept) == (4, 2)
    assert read(at.target, "to") == DATA


def test_a_part_of_another_size_than_planned_is_sent_again(at: Setting) -> None:
    with pytest.raises(LeaseLost):
        at.transfer(save=stop_after(3, at, LeaseLost()))
    at.target.inner.put_part(
        "to", at.saved[-1].upload_id, 2, Body(b"short"), offset=PART, deadline=Deadline(30)
    )
    done = at.transfer(resume=at.saved[-1])
    assert (done.parts_sent, done.parts_kept) == (4, 2)
    assert read(at.target, "to") == DATA


def test_an_upload_that_is_gone_is_begun_anew(at: Setting) -> None:
    with pytest.raises(LeaseLost):
        at.transfer(save=stop_after(4, at, LeaseLost()))
    old = at.saved[-1]
    at.target.abort_upload("to", old.upload_id, deadline=Deadline(30))
    at.saved.clear()
    done = at.transfer(resume=old)
    assert (done.parts_sent, done.parts_kept) == (6, 0)
    assert at.saved[0].upload_id != old.upload_id
    assert at.saved[0].parts_done == 0


def test_an_upload_that_was_completed_before_the_kill_is_only_proven(at: Setting) -> None:
    at.transfer()
    done = at.transfer(resume=at.saved[-1])
    assert (done.parts_sent, done.bytes_sent) == (0, 0)
    assert at.parts_sent() == 6


def test_a_put_that_was_done_before_the_kill_is_only_proven(at: Setting) -> None:
    put(at.origin, "small", b"abc")
    source = ChannelSource(at.origin, "small")
    first = at.transfer(source=source, data=b"abc")
    second = at.transfer(source=source, data=b"abc")
    assert second.etag == first.etag


def test_a_key_that_holds_other_bytes_is_never_overwritten(at: Setting) -> None:
    put(at.origin, "small", b"abc")
    put(at.target, "to", b"abd")
    with pytest.raises(ChecksumMismatch):
        at.transfer(source=ChannelSource(at.origin, "small"), data=b"abc")
    assert read(at.target, "to") == b"abd"


def test_a_failing_part_ends_it_and_leaves_what_can_be_resumed(at: Setting) -> None:
    at.target.fail_next("put_part", ChannelFull("no room"))
    with pytest.raises(ChannelFull):
        at.transfer()
    done = at.transfer(resume=at.saved[-1])
    assert (done.parts_sent, done.parts_kept) == (6, 0)


def test_what_save_raises_ends_it(at: Setting) -> None:
    with pytest.raises(CancelRequested):
        at.transfer(save=stop_after(0, at, CancelRequested()))
    assert at.parts_sent() == 0


def test_a_cancel_in_the_middle_ends_it_before_the_next_part(at: Setting) -> None:
    def check() -> None:
        if at.saved and at.saved[-1].parts_done == 2:
            raise CancelRequested

    with pytest.raises(CancelRequested):
        at.transfer(check=check)
    assert at.parts_sent() == 2


@pytest.mark.parametrize("call", ["put_part", "complete_upload", "get"])
def test_a_cancel_is_heard_while_a_call_hangs(at: Setting, call: str) -> None:
    gate = at.target.hold(call)
    asked_while_hanging: list[float] = []

    def check() -> None:
        if gate.reached.is_set():
            asked_while_hanging.append(time.monotonic())
            if len(asked_while_hanging) == 2:
                raise CancelRequested

    before = time.monotonic()
    try:
        with pytest.raises(CancelRequested):
            at.transfer(check=check)
    finally:
        gate.release()
    assert time.monotonic() - before < 10
    assert asked_while_hanging[1] - asked_while_hanging[0] < 1.0


def test_a_deadline_ends_it_while_a_part_hangs(at: Setting) -> None:
    gate = at.target.hold("put_part")
    try:
        with pytest.raises(DeadlinePassed):
            at.transfer(deadline=Deadline(0.5))
    finally:
        gate.release()


def test_a_source_that_hangs_does_not_keep_the_owner_asleep(at: Setting) -> None:
    gate = at.source_faults.hold("get")

    def check() -> None:
        if gate.reached.is_set():
            raise CancelRequested

    try:
        with pytest.raises(CancelRequested):
            at.transfer(check=check)
    finally:
        gate.release()


def test_the_bandwidth_limit_holds(at: Setting) -> None:
    at.opened = at.open(bytes_per_second=400_000, parallel_parts=2)
    begun = time.monotonic()
    at.transfer()
    # 328 kB out and as many back, less the burst of each direction (0.25 s).
    assert time.monotonic() - begun > 2 * (len(DATA) / 400_000 - 0.25)


@pytest.mark.parametrize(("actual", "declared"), [(-1, 0), (1, 0), (-len(DATA), 0)])
def test_a_source_of_another_size_is_no_fault_of_the_channel(
    at: Setting, actual: int, declared: int
) -> None:
    put(at.origin, "other", (DATA + b"x")[: len(DATA) + actual])
    with pytest.raises(SourceError) as caught:
        at.transfer(source=ChannelSource(at.origin, "other"))
    assert caught.value.code == "source_size"
    assert not isinstance(caught.value, ChannelError)
    assert at.target.head("to", deadline=Deadline(30)) is None


@pytest.mark.parametrize("size", [100, len(DATA)])
def test_a_source_with_another_sha256_is_no_fault_of_the_channel(at: Setting, size: int) -> None:
    put(at.origin, "other", DATA[:size])
    with pytest.raises(SourceError):
        transfer(
            ChannelSource(at.origin, "other"),
            at.opened,
            "to",
            size=size,
            sha256=sha256(b"something else"),
            deadline=Deadline(60),
        )


def test_a_source_that_is_missing_is_told_as_such(at: Setting) -> None:
    with pytest.raises(SourceError) as caught:
        at.transfer(source=ChannelSource(at.origin, "nothing"))
    assert caught.value.code == "source_missing"


def test_a_source_that_vanishes_in_the_middle(at: Setting) -> None:
    def save(progress: Progress) -> None:
        at.saved.append(progress)
        if progress.parts_done == 2:
            at.origin.delete("from", deadline=Deadline(30))

    with pytest.raises(SourceError):
        at.transfer(save=save)


def test_a_source_that_cannot_be_read_now_is_another_matter(at: Setting) -> None:
    at.source_faults.fail_next("get", ChannelUnavailable("down"))
    with pytest.raises(SourceUnavailable) as caught:
        at.transfer()
    assert not isinstance(caught.value, ChannelError)
    assert at.opened.breaker.state == "closed"


class Truncated:
    """A source that says it is longer than what it gives."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def size(self, deadline: Deadline) -> int:
        return len(DATA)

    @contextmanager
    def open(self, start: int, length: int, deadline: Deadline) -> Iterator[Iterator[bytes]]:
        yield iter([self._data[start : start + length]])


@pytest.mark.parametrize("size", [0, 3 * PART + 5, len(DATA) - 1])
def test_a_source_that_ends_early_is_found_out(at: Setting, size: int) -> None:
    with pytest.raises(SourceError):
        at.transfer(source=Truncated(DATA[:size]))
    assert at.target.head("to", deadline=Deadline(30)) is None


@pytest.mark.parametrize("more", [b"", b"x", DATA])
def test_a_small_source_of_another_size_is_found_out(at: Setting, more: bytes) -> None:
    put(at.origin, "small", b"abc" + more)
    small = ChannelSource(at.origin, "small")
    if more:
        with pytest.raises(SourceError) as caught:
            at.transfer(source=small, data=b"abc")
        assert caught.value.code == "source_size"
    with pytest.raises(SourceError) as caught:
        at.transfer(source=small, data=b"abcd" if not more else b"abc" + more + b"y")
    assert caught.value.code == "source_size"
    assert at.target.head("to", deadline=Deadline(30)) is None


def test_a_source_that_gives_too_much_is_found_out(at: Setting) -> None:
    class Generous(Truncated):
        @contextmanager
        def open(self, start: int, length: int, deadline: Deadline) -> Iterator[Iterator[bytes]]:
            yield iter([DATA[start : start + length], b"and more"])

    with pytest.raises(SourceError):
        at.transfer(source=Generous(DATA))


def test_bytes_that_change_on_the_channel_are_found_out(at: Setting, tmp_path: Path) -> None:
    def save(progress: Progress) -> None:
        at.saved.append(progress)
        if progress.parts_done == 6:
            data = tmp_path / "target/uploads" / progress.upload_id / "data"
            with data.open("r+b") as file:
                file.seek(3 * PART)
                file.write(b"rot")

    with pytest.raises(ChecksumMismatch) as caught:
        at.transfer(save=save)
    assert caught.value.facts["what"] == "content"


def test_a_resumed_transfer_is_proven_as_a_whole(at: Setting, tmp_path: Path) -> None:
    with pytest.raises(LeaseLost):
        at.transfer(save=stop_after(3, at, LeaseLost()))
    data = tmp_path / "target/uploads" / at.saved[-1].upload_id / "data"
    with data.open("r+b") as file:
        file.write(b"rot")
    with pytest.raises(ChecksumMismatch):
        at.transfer(resume=at.saved[-1])


def test_a_channel_that_hangs_for_ever_is_given_up(at: Setting) -> None:
    gate = at.target.hold("put_part")
    try:
        with pytest.raises(ChannelTimeout):
            at.transfer(stall_seconds=0.2)
    finally:
        gate.release()
    for _ in range(4):
        assert at.opened.breaker.state == "closed"
        at.opened.breaker.failed()
    assert at.opened.breaker.state == "open", "the one that hangs is counted"


def test_a_source_that_hangs_for_ever_is_not_the_channels_fault(at: Setting) -> None:
    gate = at.source_faults.hold("get")
    try:
        with pytest.raises(SourceUnavailable):
            at.transfer(stall_seconds=0.2)
    finally:
        gate.release()


def test_waiting_for_the_bandwidth_is_no_stall(at: Setting) -> None:
    at.opened = at.open(bytes_per_second=len(DATA))
    assert at.transfer(stall_seconds=0.05).size == len(DATA)


def test_a_channel_that_fails_again_and_again_is_left_alone(at: Setting) -> None:
    at.opened = OpenChannel.around(at.target, Tuning(part_bytes=PART, breaker_failures=2))
    at.target.fail_always(ChannelUnavailable("down"))
    for _ in range(4):
        with pytest.raises(ChannelError):
            at.transfer()
    assert at.target.calls["create_upload"] == 2
    assert not at.opened.breaker.ready()


def test_verify_compares_size_and_content(at: Setting) -> None:
    put(at.target, "to", b"abc")
    found = verify(at.opened, "to", size=3, sha256=sha256(b"abc"), deadline=Deadline(30))
    assert found.size == 3
    for size, digest in ((4, sha256(b"abc")), (3, sha256(b"abd"))):
        with pytest.raises(ChecksumMismatch):
            verify(at.opened, "to", size=size, sha256=digest, deadline=Deadline(30))
    with pytest.raises(ObjectMissing):
        verify(at.opened, "else", size=3, sha256=sha256(b"abc"), deadline=Deadline(30))


def test_verify_takes_the_providers_own_sha256(at: Setting) -> None:
    class Provider(FaultyChannel):
        def head(self, key: str, *, deadline: Deadline):  # type: ignore[no-untyped-def]
            found = super().head(key, deadline=deadline)
            return found and replace(found, sha256=sha256(b"abc"))

    provider = Provider(at.target.inner)
    opened = OpenChannel.around(provider)
    put(provider, "to", b"abc")
    verify(opened, "to", size=3, sha256=sha256(b"abc"), deadline=Deadline(30))
    assert provider.calls["get"] == 0
    with pytest.raises(ChecksumMismatch):
        verify(opened, "to", size=3, sha256=sha256(b"xyz"), deadline=Deadline(30))


def test_verify_hears_a_cancel(at: Setting) -> None:
    known = sha256(b"abc")
    put(at.target, "to", b"abc")
    gate = at.target.hold("get")

    def check() -> None:
        if gate.reached.is_set():
            raise CancelRequested

    try:
        with pytest.raises(CancelRequested):
            verify(at.opened, "to", size=3, sha256=known, check=check, deadline=Deadline(30))
    finally:
        gate.release()
