"""The table of kills names every failpoint of the source, and none that is not there."""

from __future__ import annotations

import re
from pathlib import Path

from tests.faults.steps import ELSEWHERE, TABLES

ROOT = Path(__file__).resolve().parents[2]
_NAMED = re.compile(r'\bfailpoint\(\s*"([^"]+)"')
_OF_QUEUES = re.compile(r'\bfailpoint\(\s*f"\{self\.(?:_deps\.)?_?points\}\.([a-z_]+)"')
_QUEUES = re.compile(r'\bpoints="([a-z]+)"')
_ANY = re.compile(r"\bfailpoint\((?!name: str)")


def sources() -> dict[str, str]:
    paths = [path for top in ("services", "shared") for path in (ROOT / top).rglob("*.py")]
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}


def in_source() -> set[str]:
    texts = sources()
    queues = {name for text in texts.values() for name in _QUEUES.findall(text)}
    assert queues >= {"upload", "object", "backup", "restore"}
    found: set[str] = set()
    for path, text in texts.items():
        named, of_queues = _NAMED.findall(text), _OF_QUEUES.findall(text)
        assert len(_ANY.findall(text)) == len(named) + len(of_queues), path
        found.update(named)
        # An upload is sent like a copy, but has its own checkpoint and failure.
        is_copying = path.endswith("copy_run.py")
        mine = {*queues, "replica"} - ({"upload"} if is_copying else set())
        found.update(f"{queue}.{point}" for queue in mine for point in of_queues)
    return found


def test_every_failpoint_has_a_kill() -> None:
    killed = {point for table in TABLES.values() for run in table.values() for point in run}
    assert in_source() - killed - set(ELSEWHERE) == set(), "nobody dies there in any test"
    assert (killed | set(ELSEWHERE)) - in_source() == set(), "no such failpoint"
    assert killed & set(ELSEWHERE) == set()


def test_what_others_kill_they_name() -> None:
    for point, path in ELSEWHERE.items():
        assert f'"{point}"' in (ROOT / path).read_text(), f"{point}: not in {path}"


def test_every_run_is_used() -> None:
    texts = "".join(path.read_text() for path in (ROOT / "tests/faults").glob("test_steps_*.py"))
    names = {"backup sweeps": "BACKUP_SWEEPS"}
    for name, table in TABLES.items():
        constant = names.get(name, name.upper())
        for run in table:
            assert f'{constant}["{run}"]' in texts, f"{constant}: {run}"
