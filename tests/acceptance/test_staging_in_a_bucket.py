"""Staging in a bucket: api, reviewer and uploaders share no disk."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from services.cli.supervisor import EmbeddedStack
from tests.acceptance.conftest import SLOW
from tests.acceptance.product import (
    PATIENCE,
    Product,
    Tenant,
    object_path,
    random_bytes,
    s3_variables,
)
from tests.servers.mariadb import MariaDB
from tests.servers.redis import RedisServer
from tests.servers.rgw import CephRGW
from tests.support.eventually import eventually

MIB = 1024 * 1024
#: Slow enough that a kill meets the middle of a large file.
PACE = 24 * MIB
FORBIDDEN = b"some forbidden words"
#: Rejected bytes stay in staging: their quarantine lasts for days.
QUARANTINED = len(FORBIDDEN)


@pytest.fixture(scope="module")
def diskless(
    mariadb: MariaDB,
    redis_server: RedisServer,
    rgw: CephRGW,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Product]:
    """The stack with staging in a bucket."""
    run = uuid.uuid4().hex[:12]
    buckets = {name: f"{name}-{run}" for name in ("main", "slow", "paced", "staging")}
    database = mariadb.create_database()
    staging = {
        "kind": "s3",
        "endpoint": rgw.server.endpoint,
        "bucket": buckets["staging"],
        "access_key": rgw.server.access_key,
        "secret_key": rgw.server.secret_key,
        "max_age_seconds": "5",
        "trash_seconds": "1",
    }
    variables = {
        "BLOX_DATABASE_URL": mariadb.url(database),
        "BLOX_REDIS_URL": redis_server.url,
        "BLOX_NAMESPACE": f"t{run}",
        "BLOX_GRACE_SECONDS": "1",
        "BLOX_SCHEDULER__CLEANUP_SECONDS": "1",
        "BLOX_SWEEPS__MIN_AGE_SECONDS": "1",
        "BLOX_OUTBOX__SCAN_SECONDS": "0.5",
        "BLOX_OUTBOX__LEASE_SECONDS": "4",
        "BLOX_OUTBOX__RENEW_SECONDS": "1",
        "BLOX_OUTBOX__RECOVERY_MIN_SECONDS": "0.1",
        "BLOX_OUTBOX__RECOVERY_MAX_SECONDS": "0.5",
        **{f"BLOX_STAGING__{name.upper()}": value for name, value in staging.items()},
        **s3_variables("main", rgw.server, buckets["main"]),
        **s3_variables("slow", rgw.server, buckets["slow"], bandwidth_bytes_per_second=str(SLOW)),
        **s3_variables("paced", rgw.server, buckets["paced"], bandwidth_bytes_per_second=str(PACE)),
    }
    directory = Path(tmp_path_factory.mktemp("diskless"))
    stack = EmbeddedStack(
        directory, variables=variables, workers={"upload": 2, "review": 1, "delete": 1}
    )
    engine = sa.create_engine(variables["BLOX_DATABASE_URL"])
    try:
        stack.start(timeout_seconds=120.0)
        yield Product(stack, rgw.server, engine, buckets)
    finally:
        stack.stop()
        engine.dispose()
        mariadb.drop_database(database)


@pytest.fixture
def customer(diskless: Product) -> Iterator[Tenant]:
    made = Tenant(diskless.stack)
    with made.http:
        yield made


def staged_sizes(product: Product) -> list[int]:
    found = product.s3.list_objects_v2(Bucket=product.buckets["staging"])
    return [item["Size"] for item in found.get("Contents", ())]


def open_uploads(product: Product) -> list[str]:
    found = product.s3.list_multipart_uploads(Bucket=product.buckets["staging"])
    return [item["Key"] for item in found.get("Uploads", ())]


@pytest.mark.parametrize("size", [0, 70_000, 12 * MIB + 5])
def test_content_is_reviewed_stored_and_read(
    diskless: Product, customer: Tenant, size: int
) -> None:
    customer.bucket("reviewed", review_policy={"reject_keywords": ["forbidden words"]})
    content = random_bytes(size)
    put = customer.put("reviewed/a.bin", content)
    assert put["state"] == "reviewing"
    eventually(lambda: customer.state("reviewed/a.bin") == "stored", 20)
    assert customer.get("reviewed/a.bin").content == content
    eventually(lambda: all(one <= QUARANTINED for one in staged_sizes(diskless)), 20)
    refused = customer.put("reviewed/b.txt", FORBIDDEN, "text/plain")
    task = customer.ended(refused["task_id"])
    assert task["result"]["decision"] == "reject", task
    assert customer.state("reviewed/b.txt") is None
    assert not [path for path in diskless.stack.layout.staging.rglob("*") if path.is_file()]
    assert QUARANTINED in staged_sizes(diskless)


def test_a_version_that_waits_is_read_from_staging(diskless: Product, customer: Tenant) -> None:
    customer.bucket("waiting", "slow")
    content = random_bytes(7 * MIB)
    customer.put("waiting/a", content)
    part = customer.get("waiting/a", range="bytes=5242870-5242890")
    assert part.headers["x-blox-state"] == "pending"
    assert (part.status_code, part.content) == (206, content[5242870:5242891])
    customer.delete("waiting/a")


def test_a_killed_api_leaves_only_what_the_cleanup_removes(
    diskless: Product, customer: Tenant
) -> None:
    customer.bucket("killed")
    goes_on = threading.Event()

    def body() -> Iterator[bytes]:
        for _ in range(13):
            yield bytes(MIB)
        goes_on.wait(60)
        yield b"never"

    def put() -> None:
        with pytest.raises(httpx.HTTPError):
            customer.http.put(object_path("killed/a"), content=body())
        ended.set()

    ended = threading.Event()
    sender = threading.Thread(target=put)
    sender.start()
    try:
        eventually(lambda: len(open_uploads(diskless)) == 1, 30)
        diskless.stack.kill("api")
    finally:
        goes_on.set()
        sender.join(60)
    assert ended.is_set()
    eventually(lambda: open_uploads(diskless) == [], 60)
    assert all(one == QUARANTINED for one in staged_sizes(diskless))
    assert customer.state("killed/a") is None
    ran = diskless.blox("check", "--min-age-seconds", "0", "--settle-seconds", "3")
    assert ran.code == 0, ran.out + ran.err
    assert diskless.blox("doctor").out.count("bucket") >= 1


def test_a_killed_large_upload_goes_on_from_its_last_part_on_another_node(
    diskless: Product, customer: Tenant
) -> None:
    customer.bucket("large", "paced")
    content = random_bytes(64 * MIB + 11)
    task_id = int(customer.put("large/a", content)["task_id"])
    by_pid = {pid: name for name, pid in diskless.stack.pids().items()}

    def parts_there() -> tuple[str, int]:
        task = customer.task(task_id)
        parts = [event for event in task["events"] if event["type"] == "part"]
        assert len(parts) >= 4, task["state"]
        return str(task["owner"]), len(parts)

    owner, before = eventually(parts_there, 60)
    # The name of a process has its number in it.
    killed = by_pid[int(owner.rpartition(":")[0].split("-")[-2])]
    assert killed.startswith("upload")
    diskless.stack.kill(killed)
    task = customer.ended(task_id)
    assert (task["state"], task["attempt"]) == ("completed", 1), task
    result = task["result"]
    assert result["parts_kept"] >= before
    assert result["parts_kept"] + result["parts_sent"] == 13
    assert result["bytes_sent"] < len(content)
    resumed = [event["data"] for event in task["events"] if event["type"] == "resumed"]
    assert [one["parts_done"] >= before for one in resumed] == [True]
    assert customer.get("large/a").content == content


def test_parts_are_joined_by_another_node_without_a_common_disk(
    diskless: Product, customer: Tenant
) -> None:
    """The node that joins them dies with a part of the whole in staging; the other goes on."""
    customer.bucket("parts")
    contents = [random_bytes(6 * MIB), random_bytes(6 * MIB), random_bytes(1)]
    order = {"operation_id": "parts", "bucket": "parts", "key": "a"}
    upload = customer.http.post("/uploads", json=order).raise_for_status().json()["id"]
    for number, content in enumerate(contents, start=1):
        path = f"/uploads/{upload}/parts/{number}"
        customer.http.put(path, content=content).raise_for_status()
    doomed, spare = (name for name in diskless.stack.names if name.startswith("upload"))
    for name in (doomed, spare):
        diskless.stack.stop_process(name)
    diskless.stack.set_variables(doomed, {"BLOX_FAILPOINTS": "assemble.after_part=kill"})
    before = diskless.stack.restarts()[doomed]
    diskless.stack.start_process(doomed)
    accepted = customer.http.post(f"/uploads/{upload}:complete").raise_for_status().json()
    eventually(lambda: diskless.stack.restarts()[doomed] > before, PATIENCE)
    diskless.stack.set_variables(doomed, {})
    diskless.stack.start_process(spare)
    task = customer.ended(accepted["task_id"])
    assert task["state"] == "completed", task
    (joined,) = (event["data"] for event in task["events"] if event["type"] == "joined")
    assert joined["parts_sent"] + joined["parts_kept"] == 2
    assert joined["parts_kept"] >= 1
    done = customer.http.get(f"/uploads/{upload}").json()
    assert customer.ended(done["result"]["task_id"])["state"] == "completed"
    assert customer.get("parts/a").content == b"".join(contents)
    # The parts, the whole that the dead node left, and the one that counted: all gone.
    eventually(lambda: all(one <= QUARANTINED for one in staged_sizes(diskless)), PATIENCE)
    diskless.stack.wait_ready(PATIENCE)
