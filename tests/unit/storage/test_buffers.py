"""Memory of parts: used again while transfers run, and no longer."""

from __future__ import annotations

from shared.storage.buffers import Buffers

PART = 1000


def test_what_was_given_back_is_lent_again() -> None:
    buffers = Buffers()
    with buffers.in_use():
        with buffers.take(PART) as first:
            first[:] = b"x" * PART
        with buffers.take(PART // 2) as second:
            assert len(second) == PART // 2
            assert bytes(second) == b"x" * (PART // 2), "it is the same memory"
        assert buffers.idle_bytes() == PART


def test_nobody_shares_memory() -> None:
    buffers = Buffers()
    with buffers.in_use(), buffers.take(PART) as one, buffers.take(PART) as other:
        one[:] = b"1" * PART
        other[:] = b"2" * PART
        assert bytes(one) == b"1" * PART


def test_nothing_is_kept_after_the_last_transfer() -> None:
    buffers = Buffers()
    with buffers.in_use():
        with buffers.in_use(), buffers.take(PART):
            pass
        assert buffers.idle_bytes() == PART
    assert buffers.idle_bytes() == 0
    with buffers.take(PART):
        pass
    assert buffers.idle_bytes() == 0


def test_what_lies_idle_is_bounded_and_goes_before_new_memory_comes() -> None:
    buffers = Buffers(most_idle_bytes=2 * PART)
    with buffers.in_use():
        with buffers.take(PART), buffers.take(PART), buffers.take(PART):
            pass
        assert buffers.idle_bytes() == 2 * PART
        with buffers.take(PART + 1):
            assert buffers.idle_bytes() == 0
        assert buffers.idle_bytes() == PART + 1


def test_a_failure_gives_back_as_well() -> None:
    buffers = Buffers()
    with buffers.in_use():
        try:
            with buffers.take(PART):
                raise ValueError
        except ValueError:
            pass
        assert buffers.idle_bytes() == PART
