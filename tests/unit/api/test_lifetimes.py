"""Headers that say when an object expires."""

from __future__ import annotations

import datetime as dt

import pytest

from services.api.lifetimes import expiry_header, parse_lifetime
from shared.catalog.lifecycle import Lifetime
from shared.core.errors import InvalidError

AT, IN = "x-blox-expires-at", "x-blox-expires-in"
MOMENT = dt.datetime(2031, 12, 31, 22, 0)


def test_times_and_seconds() -> None:
    assert parse_lifetime({}) == Lifetime()
    for text in ("2031-12-31T22:00:00Z", "2032-01-01T00:00:00+02:00", "2031-12-31T22:00Z"):
        assert parse_lifetime({AT: text}) == Lifetime(at=MOMENT)
    assert parse_lifetime({IN: "3600"}) == Lifetime(seconds=3600.0)
    assert parse_lifetime({IN: "0.5"}) == Lifetime(seconds=0.5)


@pytest.mark.parametrize(
    "headers",
    [
        {AT: "2031-12-31T22:00:00Z", IN: "1"},
        {AT: "soon"},
        {AT: ""},
        {AT: "2031-12-31T22:00:00"},
        {AT: "0001-01-01T00:00:00+14:00"},
        {IN: "soon"},
        {IN: "0"},
        {IN: "-1"},
        {IN: "nan"},
        {IN: "inf"},
        {IN: ""},
    ],
)
def test_what_is_no_time_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidError):
        parse_lifetime(headers)


def test_answer() -> None:
    assert expiry_header(None) == {}
    assert expiry_header(MOMENT) == {AT: "2031-12-31T22:00:00Z"}
