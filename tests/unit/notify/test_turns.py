"""Turns: an address that is slow leaves threads to all others, one that is quick is waited for."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest

from services.notify import turns
from services.notify.turns import NoTurn, Turns


def taken(turns_: Turns, stack: ExitStack, address: str, tenant: str = "t") -> None:
    stack.enter_context(turns_.take(address, tenant, is_in_doubt=False))


def test_an_address_gets_half_of_the_threads_and_a_tenant_three_quarters() -> None:
    asked = Turns(4)
    with ExitStack() as stack:
        taken(asked, stack, "slow")
        taken(asked, stack, "slow")
        with pytest.raises(NoTurn):
            taken(asked, stack, "slow")
        taken(asked, stack, "other")
        with pytest.raises(NoTurn):
            taken(asked, stack, "third")
        taken(asked, stack, "third", tenant="another")
    with ExitStack() as stack:
        for address in ("slow", "slow", "other"):
            taken(asked, stack, address)


def test_one_in_doubt_is_tried_by_one() -> None:
    asked = Turns(8)
    with asked.take("a", "t", is_in_doubt=True):
        with pytest.raises(NoTurn), asked.take("a", "t", is_in_doubt=True):
            pass
        with asked.take("b", "t", is_in_doubt=True):
            pass


def test_a_quick_one_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "SLOW_SECONDS", 30.0)
    asked = Turns(2)
    inside, leave, got = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        with asked.take("a", "t", is_in_doubt=False):
            inside.set()
            leave.wait(30.0)

    def second() -> None:
        with asked.take("a", "t", is_in_doubt=False):
            got.set()

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert inside.wait(30.0)
    threads[1].start()
    assert not got.is_set()
    leave.set()
    assert got.wait(30.0)
    for thread in threads:
        thread.join(30.0)


def test_a_slow_one_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(turns, "monotonic", lambda: now[0])
    monkeypatch.setattr(turns, "SLOW_SECONDS", 3600.0)
    asked = Turns(2)
    with asked.take("a", "t", is_in_doubt=False):
        now[0] += 3600.0
        with pytest.raises(NoTurn), asked.take("a", "t", is_in_doubt=False):
            pass
