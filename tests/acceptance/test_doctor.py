"""`blox doctor` on the running product, and on what does not work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from shared.catalog.models import ChannelRecord
from shared.outbox.schema import nodes
from shared.runtime.schema import EXPECTED_HEAD
from tests.acceptance.product import Blox, Product, Ran, Tenant, run_blox
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer

QUEUES = ("upload", "review", "delete", "replica", "origin", "backup", "restore", "notify")
DOCTOR = ("doctor", "-o", "json")


def findings(ran: Ran) -> dict[str, tuple[str, str]]:
    """Return what -> (verdict, detail)."""
    assert ran.code in (0, 1), ran.err
    return {item["what"]: (item["verdict"], item["detail"]) for item in json.loads(ran.out)}


def test_a_healthy_product_has_nothing_to_complain_of(product: Product) -> None:
    ran = product.blox(*DOCTOR)
    found = findings(ran)
    assert ran.code == 0, found
    assert set(found) == {
        "settings",
        "redis",
        "staging",
        "database",
        "clock",
        "schema",
        "channel main",
        "channel spare",
        "channel slow",
        *(f"queue {queue}" for queue in QUEUES),
    }
    assert {verdict for verdict, _ in found.values()} <= {"ok", "warning"}
    table = product.blox("doctor")
    assert table.code == 0
    assert table.out.splitlines()[0].split() == ["verdict", "what", "detail"]


def test_redis_that_is_away(product: Product, blox: Blox) -> None:
    away = f"redis://127.0.0.1:{free_port()}/0"
    ran = blox({**product.stack.variables, "BLOX_REDIS_URL": away}, *DOCTOR)
    found = findings(ran)
    assert ran.code == 1
    verdict, detail = found["redis"]
    assert (verdict, detail.partition(":")[0]) == ("fault", "does not answer")
    assert found["database"][0] == "ok"


def test_a_variable_that_nobody_reads_is_named(product: Product, blox: Blox) -> None:
    ran = blox({**product.stack.variables, "BLOX_WRKER__THREADS": "4"}, "doctor")
    assert ran.code == 0
    assert "warning  settings" in ran.out
    assert "BLOX_WRKER__THREADS is set, but there is no such setting" in ran.out


def test_redis_that_evicts(product: Product, private_redis: RedisServer, blox: Blox) -> None:
    with private_redis.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    ran = blox({**product.stack.variables, "BLOX_REDIS_URL": private_redis.url}, *DOCTOR)
    assert (ran.code, findings(ran)["redis"][0]) == (0, "warning")
    with private_redis.client() as client:
        client.config_set("maxmemory", "100mb")
    ran = blox({**product.stack.variables, "BLOX_REDIS_URL": private_redis.url}, *DOCTOR)
    verdict, detail = findings(ran)["redis"]
    assert (ran.code, verdict) == (1, "fault")
    assert "allkeys-lru drops messages" in detail


@pytest.fixture
def broken_channel(product: Product) -> Iterator[None]:
    """The channel `spare` at an address where nobody listens."""
    is_spare = ChannelRecord.name == "spare"
    change = sa.update(ChannelRecord).where(is_spare)
    with product.engine.begin() as connection:
        found = connection.execute(sa.select(ChannelRecord.settings).where(is_spare))
        settings = dict(found.scalar_one())
        away = {**settings, "endpoint": f"http://127.0.0.1:{free_port()}"}
        connection.execute(change.values(settings=away))
    yield
    with product.engine.begin() as connection:
        connection.execute(change.values(settings=settings))


@pytest.fixture
def far(product: Product) -> Iterator[Tenant]:
    """A tenant whose bucket `far` belongs to a region that only replicas are copied in."""
    tenant = Tenant(product.stack)
    tenant.bucket("far", region="nowhere")
    now = sa.func.utc_timestamp(6)
    row = {"node": "alone", "role": "worker", "queues": ["replica.nowhere"]}
    with product.engine.begin() as connection:
        connection.execute(sa.insert(nodes).values(**row, started_at=now, last_seen=now))
    yield tenant
    with product.engine.begin() as connection:
        connection.execute(sa.delete(nodes).where(nodes.c.node == "alone"))
    assert tenant.http.delete("/buckets/far").status_code == 204


def test_a_region_with_consumers_of_one_queue_only(product: Product, far: Tenant) -> None:
    verdict, detail = findings(product.blox(*DOCTOR))["region nowhere"]
    missing = "backup, delete, origin, restore, review and 1 more"
    assert (verdict, detail) == ("fault", f"nobody consumes {missing}, that work of far waits")
    far.bucket("far", region="nowhere", region_fallback_seconds=60)
    verdict, detail = findings(product.blox(*DOCTOR))["region nowhere"]
    assert (verdict, detail.partition(":")[2]) == (
        "warning",
        " that work falls back to the base queues",
    )


@pytest.mark.usefixtures("broken_channel")
def test_a_channel_that_does_not_answer(product: Product, blox: Blox) -> None:
    ran = blox(product.stack.variables, *DOCTOR)
    found = findings(ran)
    assert ran.code == 1
    assert found["channel main"] == ("ok", "answers")
    verdict, detail = found["channel spare"]
    assert verdict == "fault"
    assert "Connection refused" in detail


def test_keys_that_were_sealed_with_another_secret(product: Product, blox: Blox) -> None:
    other = blox({}, "secret-key").out.strip()
    ran = blox({**product.stack.variables, "BLOX_SECRET_KEY": other}, *DOCTOR)
    assert ran.code == 1
    verdict, detail = findings(ran)["channel main"]
    assert verdict == "fault"
    assert "sealed with another secret key" in detail
    without = blox({**product.stack.variables, "BLOX_SECRET_KEY": ""}, *DOCTOR)
    assert without.code == 1
    assert findings(without)["settings"][1].startswith("BLOX_SECRET_KEY is not set")


@pytest.fixture
def sqlite(tmp_path: Path, blox: Blox) -> dict[str, str]:
    """Settings that name a database which is not there yet."""
    return {
        "BLOX_DATABASE_URL": f"sqlite:///{tmp_path}/blox.sqlite3",
        "BLOX_STAGING__PATH": str(tmp_path / "staging"),
        "BLOX_SECRET_KEY": blox({}, "secret-key").out.strip(),
        "BLOX_REDIS_URL": f"redis://127.0.0.1:{free_port()}/0",
    }


def test_a_schema_that_is_not_there_or_too_old(sqlite: dict[str, str], blox: Blox) -> None:
    none = blox(sqlite, *DOCTOR)
    assert none.code == 1
    assert "`blox db upgrade` makes it" in findings(none)["database"][1]
    for command in (("check",), ("tasks", "list")):
        ran = blox(sqlite, *command)
        assert (ran.code, ran.out) == (1, "")
        assert "there is no database" in ran.err

    upgraded = run_blox(sqlite, "db", "upgrade")
    assert (upgraded.code, upgraded.out) == (0, f"the schema is at {EXPECTED_HEAD}\n")
    assert blox(sqlite, "tasks", "list").out == "no tasks\n"
    found = findings(blox(sqlite, *DOCTOR))
    assert found["schema"] == ("ok", "as this version wants it")
    # Nobody has made the folder yet, and there is no channel.
    assert (found["staging"][0], found["channels"][0]) == ("fault", "warning")

    engine = sa.create_engine(sqlite["BLOX_DATABASE_URL"])
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '0000'"))
    engine.dispose()
    old = blox(sqlite, *DOCTOR)
    assert findings(old)["schema"] == (
        "fault",
        f"the schema is at 0000, this code needs {EXPECTED_HEAD}: run `blox db upgrade`",
    )
    refused = blox(sqlite, "tasks", "list")
    assert (refused.code, refused.out) == (1, "")
    assert "run `blox db upgrade`" in refused.err
