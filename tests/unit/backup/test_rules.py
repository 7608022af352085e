"""Which runs are kept, how long a run waits, and what a bucket's rule may say."""

from __future__ import annotations

import datetime as dt

import pydantic
import pytest

from services.backup.rules import Kept, outlived, wait_seconds
from shared.catalog.backup_policy import BackupPolicy

NOW = dt.datetime(2026, 6, 1)
#: A run a day, the newest first.
RUNS = [Kept(number, NOW - dt.timedelta(days=9 - number)) for number in range(9, 0, -1)]


@pytest.mark.parametrize(
    ("rule", "gone"),
    [
        ({}, []),
        ({"keep_runs": 3}, [6, 5, 4, 3, 2, 1]),
        ({"keep_days": 4.5}, [4, 3, 2, 1]),
        ({"keep_runs": 7, "keep_days": 4.5}, [4, 3, 2, 1]),
        ({"keep_runs": 1, "keep_days": 36_600}, [8, 7, 6, 5, 4, 3, 2, 1]),
        ({"keep_runs": 100}, []),
    ],
)
def test_runs_go_by_number_or_by_age(rule: dict[str, float], gone: list[int]) -> None:
    policy = BackupPolicy.model_validate({"target": "vault", **rule})
    assert outlived(RUNS, policy, now=NOW) == gone


def test_the_newest_run_always_stays() -> None:
    policy = BackupPolicy(target="vault", interval_seconds=3600, keep_days=1)
    later = NOW + dt.timedelta(days=1000)
    assert outlived(RUNS[:1], policy, now=later) == []
    assert outlived([], policy, now=later) == []


def test_the_newest_whole_run_stays_behind_newer_ones_that_lack_contents() -> None:
    policy = BackupPolicy(target="vault", keep_runs=2)
    lacking = [run._replace(is_whole=run.run_id < 6) for run in RUNS]
    assert outlived(lacking, policy, now=NOW) == [7, 6, 4, 3, 2, 1]
    assert outlived([run._replace(is_whole=False) for run in RUNS], policy, now=NOW)[-1] == 1


def test_a_run_waits_for_sources_as_long_as_to_the_next_one_within_bounds() -> None:
    seconds = {
        interval: BackupPolicy(target="vault", interval_seconds=interval).patience_seconds
        for interval in (60, 3600, 86_400)
    }
    assert seconds == {60: 600.0, 3600: 3600.0, 86_400: 21_600.0}


def test_a_young_run_looks_again_soon_and_an_old_one_less_often() -> None:
    assert [wait_seconds(age) for age in (0, 5, 60, 3600)] == [1.0, 1.0, 6.0, 15.0]


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"target": ""},
        {"target": "v", "interval_seconds": 59},
        {"target": "v", "keep_runs": 0},
        {"target": "v", "keep_days": 0.5},
        {"target": "v", "grace_seconds": -1},
        {"target": "v", "grace_seconds": float("nan")},
        {"target": "v", "mode": "always"},
        {"target": "v", "more": 1},
        {"target": "é"},
    ],
)
def test_a_rule_that_cannot_be_followed_is_refused(rule: dict[str, object]) -> None:
    with pytest.raises(pydantic.ValidationError):
        BackupPolicy.model_validate(rule)
