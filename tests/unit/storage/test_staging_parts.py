"""The room for parts on their way to an object store: bounded, on disk when memory is short."""

from __future__ import annotations

import os
import random
import tempfile
import threading
from typing import Any, BinaryIO, cast

import pytest

from shared.storage.staging_parts import GRAIN_BYTES, BodyTooSlow, Part, PartSpace, StagingBusy

#: Half of the memory is for parts that are being filled.
MEMORY, DISK = 8 * GRAIN_BYTES, 6 * GRAIN_BYTES
IN_MEMORY = MEMORY // 2
GRAIN = memoryview(bytes(GRAIN_BYTES))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def space(clock: Clock) -> PartSpace:
    return PartSpace(MEMORY, DISK, slow_seconds=30.0, clock=clock)


def filled(space: PartSpace, *, grains: int) -> Part:
    part = space.part()
    for _ in range(grains):
        part.append(GRAIN)
    return part


def places(space: PartSpace) -> int:
    """Return for how many grains there is room, in memory and on disk."""
    parts: list[Part] = []
    try:
        while True:
            parts.append(filled(space, grains=1))
    except StagingBusy:
        return len(parts)
    finally:
        for part in parts:
            part.close()


def test_a_part_takes_what_it_fills_and_no_more(space: PartSpace) -> None:
    parts = [space.part() for _ in range(4)]
    for part in parts:
        part.append(memoryview(b"a few bytes"))
    assert [part.granted_bytes for part in parts] == [GRAIN_BYTES] * 4
    assert not any(part.is_on_disk for part in parts)


def test_a_part_that_finds_no_memory_moves_to_the_disk_and_back(space: PartSpace) -> None:
    data = os.urandom(2 * GRAIN_BYTES + 17)
    part = space.part()
    part.append(memoryview(data)[:GRAIN_BYTES])
    others = filled(space, grains=3)
    part.append(memoryview(data)[GRAIN_BYTES:])
    assert (part.is_on_disk, others.is_on_disk) == (True, False)
    # What it had in memory is another's now.
    assert not filled(space, grains=1).is_on_disk
    with part.loaded() as buffer:
        assert bytes(buffer) == data


def test_without_a_place_a_body_is_refused_and_the_others_are_not(space: PartSpace) -> None:
    large, _other = filled(space, grains=5), filled(space, grains=4)
    late = filled(space, grains=1)
    with pytest.raises(StagingBusy):
        late.append(GRAIN)
    late.close()
    with large.loaded() as buffer:
        assert len(buffer) == 5 * GRAIN_BYTES


def test_who_is_too_slow_is_ended_for_another(space: PartSpace, clock: Clock) -> None:
    slow, young = filled(space, grains=5), filled(space, grains=3)
    clock.now = 20.0
    third = filled(space, grains=1)
    clock.now = 31.0
    fast = filled(space, grains=4)
    with pytest.raises(BodyTooSlow):
        slow.append(GRAIN)
    with pytest.raises(BodyTooSlow), slow.loaded():
        pass
    with third.loaded() as buffer:
        assert len(buffer) == GRAIN_BYTES
    for part in (young, fast):
        part.close()
    assert places(space) == (IN_MEMORY + DISK) // GRAIN_BYTES


def test_an_ended_part_leaves_the_disk_before_its_client_says_anything(
    space: PartSpace, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    files: list[BinaryIO] = []

    def make(**options: Any) -> BinaryIO:
        files.append(made := cast(BinaryIO, temporary_file(**options)))
        return made

    temporary_file = tempfile.TemporaryFile
    monkeypatch.setattr("tempfile.TemporaryFile", make)
    filled(space, grains=4)
    silent = filled(space, grains=6)
    assert [os.fstat(file.fileno()).st_size for file in files] == [6 * GRAIN_BYTES]
    clock.now = 31.0
    filled(space, grains=5)
    assert os.fstat(files[0].fileno()).st_size == 0
    silent.close()
    assert files[0].closed


def test_who_is_slow_goes_on_while_there_is_room(space: PartSpace, clock: Clock) -> None:
    slow = filled(space, grains=1)
    clock.now = 3600.0
    filled(space, grains=3).close()
    slow.append(GRAIN)


def test_a_part_that_is_being_sent_is_not_taken_away(space: PartSpace, clock: Clock) -> None:
    part = filled(space, grains=6)
    assert part.is_on_disk
    filled(space, grains=4)
    with part.loaded() as buffer:
        clock.now = 20.0
        with pytest.raises(StagingBusy):
            filled(space, grains=1)
        assert len(buffer) == 6 * GRAIN_BYTES
    filled(space, grains=1)


def test_parts_from_the_disk_are_sent_in_turn_whatever_is_being_filled(space: PartSpace) -> None:
    """Memory for them is kept apart: slow clients cannot hold up what others have sent whole."""
    filled(space, grains=4)
    first, second = filled(space, grains=3), filled(space, grains=3)
    done = threading.Event()

    def send() -> None:
        with second.loaded():
            done.set()

    with first.loaded():
        thread = threading.Thread(target=send)
        thread.start()
        assert not done.wait(0.2)
    assert done.wait(20)
    thread.join(20)


def test_a_disk_without_room_is_told(space: PartSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/proc/nowhere")
    filled(space, grains=4)
    with pytest.raises(StagingBusy):
        filled(space, grains=1)


@pytest.mark.parametrize("seed", range(10))
def test_everything_is_given_back(seed: int, space: PartSpace, clock: Clock) -> None:
    chosen = random.Random(seed)
    living: list[tuple[Part, bytearray]] = []
    for _ in range(400):
        clock.now += chosen.random() * 3
        at = chosen.randrange(len(living)) if living else 0
        action = chosen.random()
        if action < 0.2 or not living:
            living.append((space.part(), bytearray()))
        elif action < 0.8:
            part, data = living[at]
            more = chosen.randbytes(chosen.randrange(1, GRAIN_BYTES // 2))
            try:
                part.append(memoryview(more))
                data += more
            except StagingBusy:
                part.close()
                living.pop(at)
        elif action < 0.95:
            part, data = living.pop(at)
            try:
                with part.loaded() as buffer:
                    assert buffer == data
            except BodyTooSlow:
                continue
        else:
            living.pop(at)[0].close()
    for part, _ in living:
        part.close()
    assert places(space) == (IN_MEMORY + DISK) // GRAIN_BYTES


def test_small_bodies_ask_nobody() -> None:
    part = Part()
    part.append(memoryview(b"small"))
    with part.loaded() as buffer:
        assert bytes(buffer) == b"small"
