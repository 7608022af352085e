"""The outbox alone is a product: a wheel that works where nothing else of the project is."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _project(path: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads(path.read_text())["project"]
    return project


@pytest.mark.timeout(300)
def test_the_wheel_runs_a_task_in_an_empty_environment(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(ROOT / "scripts" / "dist"), sys.executable, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "runs a task" in done.stdout

    (wheel,) = tmp_path.glob("blox_outbox-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    packages = {"/".join(name.split("/")[:2]) for name in names if name.startswith("shared/")}
    assert packages == {"shared/core", "shared/outbox"}
    assert "shared/outbox/py.typed" in names


def test_the_wheel_asks_for_what_the_outbox_imports_and_no_more() -> None:
    needed = {
        re.match(r"[\w-]+", line)[0]
        for line in _project(ROOT / "deploy/wheel/pyproject.toml")["dependencies"]
    }
    imported: set[str] = set()
    for folder in ("core", "outbox"):
        for path in (ROOT / "shared" / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    imported.update(alias.name.split(".")[0] for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module:
                    imported.add(node.module.split(".")[0])
    foreign = imported - set(sys.stdlib_module_names) - {"shared"}
    # PyMySQL is the driver that the database's address names; nothing imports it by name.
    assert foreign | {"pymysql"} == needed


def test_the_wheel_has_the_version_of_the_project() -> None:
    ours, wheel = ROOT / "pyproject.toml", ROOT / "deploy" / "wheel" / "pyproject.toml"
    assert _project(ours)["version"] == _project(wheel)["version"]
