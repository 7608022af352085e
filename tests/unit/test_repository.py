"""Rules of the tree itself: small files, no trace of one machine, floors no linter sees."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES = 500

#: Hosts from which packages and images come, spelt so that this file does not name them.
_REGISTRIES = [
    re.compile(re.escape(".".join(parts)), re.IGNORECASE)
    for parts in (
        ("pypi", "org"),
        ("python" + "hosted", "org"),
        ("npmjs", "org"),
        ("npmjs", "com"),
        ("debian", "org"),
        ("ubuntu", "com"),
        ("docker", "io"),
        ("ghcr", "io"),
        ("quay", "io"),
        ("gcr", "io"),
    )
]
#: Folders of one machine or one person.
_MACHINE_PATHS = re.compile(r"(?<![\w.~$}/-])/(?:work|root|home|Users|opt)/[\w.]")
#: A temporary folder by a fixed name collides with another run; tests ask for one.
_FIXED_TEMPORARY = re.compile(r"(?<![\w.~$}/-])/" + r"tmp/[\w.-]+")


def _tracked() -> list[Path]:
    """Return the files of the tree, new ones as well, without what .gitignore names."""
    git = shutil.which("git")
    command = [git or "", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = git and subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed and listed.returncode == 0:
        names = [name for name in listed.stdout.split("\0") if name]
        return [path for name in names if (path := ROOT / name).is_file()]
    return [path for path in ROOT.rglob("*") if path.is_file() and not _is_made(path)]


def _is_made(path: Path) -> bool:
    """Tell, where git cannot (in an unpacked archive), what tools have left behind."""
    first, *others = path.relative_to(ROOT).parts
    made = first in {"build", "dist"} or (first.startswith(".") and first != ".ci" and others)
    return bool(made) or "__pycache__" in others


def _texts() -> list[tuple[str, str]]:
    """Return name and text of every file that is text."""
    texts = []
    for path in _tracked():
        try:
            texts.append((path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue
    return texts


def _findings(pattern: re.Pattern[str], *, but: tuple[str, ...] = ()) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()[:120]}"
        for name, text in _texts()
        if name not in but
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_python_file_is_longer_than_500_lines() -> None:
    lengths = {name: len(text.splitlines()) for name, text in _texts() if name.endswith(".py")}
    assert len(lengths) > 20, "the search found no tree"
    assert {n: length for n, length in lengths.items() if length > MOST_LINES} == {}


@pytest.mark.parametrize("registry", _REGISTRIES, ids=lambda r: r.pattern)
def test_no_file_names_a_package_registry(registry: re.Pattern[str]) -> None:
    assert _findings(registry) == []


def test_no_file_holds_a_path_of_one_machine() -> None:
    assert _findings(_MACHINE_PATHS) == []


def test_no_file_uses_a_temporary_folder_by_a_fixed_name() -> None:
    assert _findings(_FIXED_TEMPORARY) == []


@pytest.mark.parametrize("name", ["runtime.txt", "dev.txt"])
def test_every_requirement_is_pinned_with_a_hash_and_no_address(name: str) -> None:
    text = (ROOT / "requirements" / name).read_text()
    assert "://" not in text
    assert not re.search(r"^\s*(-i|-f|--(extra-)?index|--find)", text, re.MULTILINE)
    entries = re.split(r"\n(?=\S)", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    entries = [entry for entry in entries if entry.strip()]
    assert len(entries) > 10
    for entry in entries:
        assert re.match(r"[A-Za-z0-9._-]+(\[[\w,-]+\])?==[^\s;\\]+", entry), entry[:80]
        assert "--hash=sha256:" in entry, entry[:80]


def test_runtime_and_dev_pin_the_same_versions() -> None:
    def pins(name: str) -> dict[str, str]:
        text = (ROOT / "requirements" / name).read_text()
        return dict(re.findall(r"^([A-Za-z0-9._-]+)(?:\[[\w,-]+\])?==(\S+)", text, re.MULTILINE))

    runtime, dev = pins("runtime.txt"), pins("dev.txt")
    assert {name: (v, dev.get(name)) for name, v in runtime.items() if dev.get(name) != v} == {}


def test_core_imports_only_the_standard_library() -> None:
    foreign = []
    for path in (ROOT / "shared" / "core").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            else:
                continue
            foreign += [
                f"{path.name}: {module}"
                for module in modules
                if module.split(".")[0] not in sys.stdlib_module_names
                and not module.startswith("shared.core")
            ]
    assert foreign == []


def test_the_outbox_imports_nothing_of_the_project_but_core() -> None:
    allowed = re.compile(r"shared\.(core|outbox)\b")
    imported = re.compile(
        r"^\s*(?:from|import)\s+((?:shared|services|tests)\b[\w.]*)", re.MULTILINE
    )
    foreign = [
        f"{path.relative_to(ROOT)}: {module}"
        for path in (ROOT / "shared" / "outbox").rglob("*.py")
        for module in imported.findall(path.read_text())
        if not allowed.match(module)
    ]
    assert foreign == []


def test_every_folder_of_code_is_a_package() -> None:
    """import-linter does not look into a folder without `__init__.py`."""
    folders = {
        path.parent
        for path in _tracked()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in {"shared", "services"}
    }
    scripts = ROOT / "shared" / "migrations"
    bare = [
        f for f in folders if not (f / "__init__.py").exists() and scripts not in (f, *f.parents)
    ]
    assert sorted(str(folder.relative_to(ROOT)) for folder in bare) == []
