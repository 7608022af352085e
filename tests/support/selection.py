"""Which tests run, and for how long: what needs a server from apt is left out by `--no-root`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from tests.support.databases import KINDS, DatabaseKind

#: Fixtures behind which stands a server that no wheel carries.
_APT_FIXTURES = frozenset({"mariadb", "private_mariadb", "rgw"})
#: Seconds for a test that starts a whole product and its command lines, each a Python of its own:
#: on a machine that is short of time a few of them take longer than other tests may.
_ACCEPTANCE_SECONDS = 300


def database_kinds(metafunc: pytest.Metafunc) -> Sequence[object]:
    """Return the parameters of `database_url` for one test, from its marker and its folder."""
    marker = metafunc.definition.get_closest_marker("databases")
    kinds = cast("tuple[DatabaseKind, ...]", marker.args) if marker else KINDS
    unknown = set(kinds) - set(KINDS)
    if unknown or not kinds:
        raise pytest.UsageError(f"{metafunc.definition.nodeid}: databases{kinds} names {unknown}")
    if marker is None and _tier(metafunc.definition) == "unit":
        kinds = ("sqlite",)
    needs_root = pytest.mark.needs_root
    return [pytest.param(k, marks=needs_root if k == "mariadb" else ()) for k in kinds]


def mark_and_select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what needs root, and with `--no-root` report it as deselected, never as skipped."""
    for item in items:
        if not _APT_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.needs_root)
        if _tier(item) == "acceptance" and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_ACCEPTANCE_SECONDS))
    if not config.getoption("no_root"):
        return
    left_out = [item for item in items if item.get_closest_marker("needs_root")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if not item.get_closest_marker("needs_root")]


def _tier(item: pytest.Item) -> str:
    """Return the folder below tests/ in which a test stands."""
    tests = Path(__file__).resolve().parent.parent
    return item.path.relative_to(tests).parts[0] if item.path.is_relative_to(tests) else ""
