"""The deficit round robin keeps its bound whatever the backlog looks like."""

from __future__ import annotations

from collections import Counter

import hypothesis
from hypothesis import strategies as st

from shared.outbox.fairness import Ring


def _fill(ring: Ring, backlog: dict[str, int], free: int, page: int) -> list[str]:
    """Fill `free` places in pages as the filler does; returns the tenants in their order."""
    out: list[str] = []
    while len(out) < free and (turn := ring.turn()) is not None:
        tenant, allowance = turn
        wanted = min(allowance, page, free - len(out))
        count = min(wanted, backlog[tenant])
        backlog[tenant] -= count
        out += [tenant] * count
        ring.took(count, is_empty=count < wanted)
    return out


def test_tenants_share_a_window_evenly() -> None:
    ring = Ring()
    backlog = {"big": 1000, "small": 1000, "third": 1000}
    ring.begin(dict.fromkeys(backlog, 1), 30)
    assert Counter(_fill(ring, backlog, 30, 500)) == {"big": 10, "small": 10, "third": 10}


def test_a_weight_is_a_share() -> None:
    ring = Ring()
    backlog = {"heavy": 1000, "light": 1000}
    ring.begin({"heavy": 3, "light": 1}, 8)
    out: list[str] = []
    for _ in range(20):
        out += _fill(ring, backlog, 8, 500)
        ring.begin({"heavy": 3, "light": 1}, 8)
    assert Counter(out)["heavy"] == 3 * Counter(out)["light"]


def test_more_tenants_than_places_are_served_in_turn_over_the_rounds() -> None:
    ring = Ring()
    tenants = [f"t{number:03}" for number in range(100)]
    backlog = dict.fromkeys(tenants, 1000)
    out: list[str] = []
    for _ in range(25):
        ring.begin(dict.fromkeys(tenants, 1), 4)
        out += _fill(ring, backlog, 4, 500)
    assert sorted(out) == tenants


def test_who_has_nothing_keeps_no_claim_for_later() -> None:
    ring = Ring()
    backlog = {"idle": 1, "busy": 1000}
    for _ in range(5):
        ring.begin({"idle": 1, "busy": 1}, 10)
        _fill(ring, backlog, 10, 500)
    backlog["idle"] = 1000
    ring.begin({"idle": 1, "busy": 1}, 10)
    assert Counter(_fill(ring, backlog, 10, 500))["idle"] <= 5


def test_a_copy_is_independent() -> None:
    ring = Ring()
    ring.begin({"a": 1, "b": 1}, 2)
    copy = ring.copy()
    assert copy.turn() == ("a", 1)
    copy.took(1, is_empty=False)
    assert copy.turn() == ("b", 1)
    assert ring.turn() == ("a", 1)


@hypothesis.given(
    weights=st.dictionaries(
        st.sampled_from([f"t{number}" for number in range(12)]),
        st.integers(1, 5),
        min_size=2,
    ),
    windows=st.lists(st.integers(1, 200), min_size=1, max_size=30),
    page=st.integers(1, 50),
)
def test_no_tenant_waits_longer_than_the_window_and_the_others_quanta(
    weights: dict[str, int], windows: list[int], page: int
) -> None:
    """Between two rows of a tenant with a backlog go at most the others' largest quanta."""
    ring = Ring()
    backlog = dict.fromkeys(weights, 10**9)
    waited = dict.fromkeys(weights, 0)
    longest = dict.fromkeys(weights, 0)
    largest = 1
    for free in windows:
        ring.begin(weights, free)
        largest = max(largest, 1, free // len(weights))
        for tenant in _fill(ring, backlog, free, page):
            for other in weights:
                waited[other] = 0 if other == tenant else waited[other] + 1
                longest[other] = max(longest[other], waited[other])
    for tenant, wait in longest.items():
        others = sum(weight for name, weight in weights.items() if name != tenant)
        assert wait <= largest * others, (tenant, wait)
