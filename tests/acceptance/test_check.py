"""`blox check` on a stopped stack: clean as it stands, and it sees every damage that is planted."""

from __future__ import annotations

import ast
import contextlib
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import sqlalchemy as sa

import shared.catalog.invariants
import shared.outbox.invariants
from services.cli.supervisor import EmbeddedStack
from shared.storage.registry import open_channel
from shared.storage.spec import ChannelSpec
from tests.acceptance.damages import DAMAGES, Damage
from tests.acceptance.damages_backups import BACKUP_DAMAGES
from tests.acceptance.damages_notifications import NOTIFICATION_DAMAGES
from tests.acceptance.damages_origins import ORIGIN_DAMAGES
from tests.acceptance.damages_removal import REMOVAL_DAMAGES
from tests.acceptance.damages_replicas import REPLICA_DAMAGES
from tests.acceptance.damages_reviews import REVIEW_DAMAGES
from tests.acceptance.damages_uploads import UPLOAD_DAMAGES
from tests.acceptance.product import Blox, run_blox, s3_variables
from tests.acceptance.still import Still, live
from tests.servers.mariadb import MariaDB
from tests.servers.redis import RedisServer
from tests.servers.rgw import CephRGW

#: Nothing is excused by its age: everything stands still.
EXACT = ("--late-seconds", "0", "--min-age-seconds", "0", "--settle-seconds", "0.05")

#: Each area has a file of its own.
ALL = (
    *DAMAGES,
    *UPLOAD_DAMAGES,
    *REPLICA_DAMAGES,
    *REMOVAL_DAMAGES,
    *REVIEW_DAMAGES,
    *ORIGIN_DAMAGES,
    *NOTIFICATION_DAMAGES,
    *BACKUP_DAMAGES,
)

Check: TypeAlias = Callable[..., tuple[int, list[dict[str, str]]]]


@contextlib.contextmanager
def still_life(
    directory: Path, variables: Mapping[str, str], spec: Callable[[EmbeddedStack], ChannelSpec]
) -> Iterator[Still]:
    """Run a stack, stop it, and show what is left; its only channel is `main`."""
    small = {"BLOX_API__MIN_PART_BYTES": "1", **variables}
    stack = EmbeddedStack(
        directory, variables=small, workers={"upload": 1, "review": 1, "delete": 1}
    )
    with stack:
        cast = live(stack)
    url = stack.variables["BLOX_DATABASE_URL"]
    engine = sa.create_engine(url)
    try:
        channel = open_channel(spec(stack))
        yield Still(cast, engine, channel, stack.layout.staging, stack.variables)
    finally:
        engine.dispose()


@pytest.fixture(scope="session")
def on_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Still]:
    directory = Path(tmp_path_factory.mktemp("still"))

    def spec(stack: EmbeddedStack) -> ChannelSpec:
        return ChannelSpec("main", "file", {"root": str(stack.layout.channels / "main")}, {})

    with still_life(directory, {"BLOX_CHANNELS__MAIN__KIND": "file"}, spec) as still:
        yield still


@pytest.fixture(scope="session")
def on_servers(
    mariadb: MariaDB,
    redis_server: RedisServer,
    rgw: CephRGW,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Still]:
    run_id = uuid.uuid4().hex[:12]
    database, bucket = mariadb.create_database(), f"still-{run_id}"
    variables = {
        "BLOX_DATABASE_URL": mariadb.url(database),
        "BLOX_REDIS_URL": redis_server.url,
        "BLOX_NAMESPACE": f"t{run_id}",
        **s3_variables("main", rgw.server, bucket),
    }
    keys = {"access_key": rgw.server.access_key, "secret_key": rgw.server.secret_key}
    settings = {"endpoint": rgw.server.endpoint, "bucket": bucket}
    spec = ChannelSpec("main", "s3", settings, keys)
    with still_life(
        Path(tmp_path_factory.mktemp("still")), variables, lambda _stack: spec
    ) as still:
        yield still
    mariadb.drop_database(database)


@pytest.fixture
def check(blox: Blox) -> Check:
    """Run `blox check`: the exit code, and the list that it writes."""

    def run_check(still: Still, *more: str, **changed: str) -> tuple[int, list[dict[str, str]]]:
        ran = blox({**still.variables, **changed}, "check", *EXACT, "-o", "json", *more)
        assert ran.code in (0, 1), ran.err
        breaches: list[dict[str, str]] = json.loads(ran.out)
        return ran.code, breaches

    return run_check


@pytest.fixture(params=["on_sqlite", pytest.param("on_servers", marks=pytest.mark.needs_root)])
def still(request: pytest.FixtureRequest) -> Iterator[Still]:
    """The stopped stack, put back as it was after the test."""
    found: Still = request.getfixturevalue(request.param)
    yield found
    found.restore()


@pytest.mark.parametrize("damage", ALL, ids=str)
def test_every_damage_is_seen(still: Still, check: Check, damage: Damage) -> None:
    is_unique = still.without_index(damage.index) if damage.index else contextlib.nullcontext()
    with is_unique:
        damage.plant(still)
        code, breaches = check(still, **damage.variables)
    assert code == 1
    details = [item["detail"] for item in breaches if item["invariant"] == damage.invariant]
    assert any(damage.words in detail for detail in details), breaches


def test_it_is_clean_as_it_stands_and_after_all_was_put_back(still: Still, check: Check) -> None:
    assert check(still, "--deep") == (0, [])
    still.restore()
    assert check(still, "--deep") == (0, [])


def test_changed_bytes_of_the_right_length_are_seen_by_reading_them(
    still: Still, check: Check
) -> None:
    content = bytearray(still.content(still.cast.kept))
    content[1500] ^= 1
    still.put(still.location(still.cast.kept).physical_key, bytes(content))
    (path, *_) = still.staged_files()
    path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))
    assert check(still) == (0, [])
    code, breaches = check(still, "--deep")
    assert code == 1
    assert {item["invariant"] for item in breaches} <= {
        "stored bytes are there",
        "acknowledged bytes are there",
    }
    assert any("instead of" in item["detail"] for item in breaches)


def test_the_damages_are_all_that_is_checked() -> None:
    """No invariant is there that could not fail."""
    names = set()
    files = [Path(str(shared.outbox.invariants.__file__))]
    files.append(files[0].with_name("histories.py"))
    files += Path(str(shared.catalog.invariants.__file__)).parent.glob("*.py")
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Breach":
                first: Any = node.args[0]
                names.add(first.value)
    assert names == {damage.invariant for damage in ALL}
    manual = (Path(__file__).parents[2] / "docs" / "check.md").read_text()
    cells = [line.split("|")[1] for line in manual.splitlines() if line.startswith("| ")]
    explained = {name.strip() for cell in cells for name in cell.split("·")} - {"invariant"}
    assert names == explained


def test_people_read_a_table_and_a_sentence_when_all_is_well(on_sqlite: Still) -> None:
    on_sqlite.restore()
    clean = run_blox(on_sqlite.variables, "check", "--deep", *EXACT)
    assert (clean.code, clean.out, clean.err) == (0, "every invariant holds\n", "")
    DAMAGES[0].plant(on_sqlite)
    try:
        broken = run_blox(on_sqlite.variables, "check", *EXACT)
    finally:
        on_sqlite.restore()
    head, line = broken.out.splitlines()[:2]
    assert broken.code == 1
    assert head.split() == ["invariant", "subject", "detail"]
    assert line.startswith("running tasks have a living owner  task ")
