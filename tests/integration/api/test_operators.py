"""What an operator on call does with `blox`, on a stack whose requests were made over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa

from services.cli.app import run
from shared.catalog.models import Blob, Version
from shared.catalog.secret_box import SecretBox
from shared.outbox.nodes import NodeWriter
from shared.outbox.schema import tasks
from shared.runtime.schema import EXPECTED_HEAD
from shared.runtime.settings import own_variables
from tests.integration.api.stack import BUCKET, CHANNEL, TENANT, Stack

pytestmark = pytest.mark.databases("sqlite")

_JSON = ("-o", "json")
WHERE = (TENANT, BUCKET)


@dataclass(frozen=True, slots=True)
class Ran:
    """How one command line ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


Blox = Callable[..., Ran]


@pytest.fixture
def blox(
    stack: Stack,
    redis_url: str,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Blox:
    """Run `blox` in this process on the stack's servers."""
    with stack.engine.begin() as connection:
        # The tables were made without migrations.
        connection.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32))")
        stamp = "INSERT INTO alembic_version VALUES (:head)"
        connection.execute(sa.text(stamp), {"head": EXPECTED_HEAD})
    variables = {
        "BLOX_DATABASE_URL": stack.engine.url.render_as_string(hide_password=False),
        "BLOX_REDIS_URL": redis_url,
        "BLOX_NAMESPACE": namespace,
        "BLOX_SECRET_KEY": SecretBox.generate_key(),
        "BLOX_STAGING__PATH": str(stack.staging_root),
    }
    for name in own_variables():
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    def run_here(*arguments: str) -> Ran:
        capsys.readouterr()
        code = run(arguments)
        written = capsys.readouterr()
        return Ran(code, written.out, written.err)

    return run_here


def put_stored(stack: Stack, *keys: str) -> None:
    """Put keys and let their uploads have been done."""
    client = stack.client()
    for key in keys:
        assert client.put(f"/buckets/{BUCKET}/objects/{key}", content=key.encode()).is_success
    with stack.engine.begin() as connection:
        connection.execute(sa.update(Version).values(state="stored"))
        connection.execute(sa.update(Blob).values(state="live"))


def test_keys_are_removed_by_prefix_watched_and_left_alone_again(stack: Stack, blox: Blox) -> None:
    put_stored(stack, "a/1", "a/2")
    assert blox("removals", "list", *WHERE).out == "no removals\n"

    watched = blox("removals", "start", *WHERE, "a/", "--wait", "0.6", *_JSON)

    assert watched.code == 1, "nobody works here: it has not completed in that time"
    started = json.loads(watched.out)
    assert (started["prefix"], started["state"], started["is_dry_run"]) == ("a/", "running", False)
    assert started["created_by"].startswith("cli")
    assert "0 keys, 0 bytes" in watched.err
    assert [row["id"] for row in blox("removals", "list", *WHERE, *_JSON).json] == [started["id"]]

    cancelled = blox("removals", "cancel", *WHERE, str(started["id"]), "--reason", "a mistake")

    assert cancelled.code == 0, cancelled.err
    shown = blox("removals", "show", *WHERE, str(started["id"]), *_JSON).json
    assert shown["state"] == "cancelled"
    again = blox("removals", "cancel", *WHERE, str(started["id"]))
    assert (again.code, again.err) == (4, "the removal is cancelled\n")
    unknown = blox("removals", "show", *WHERE, "99")
    assert (unknown.code, unknown.err) == (3, "there is no such removal\n")
    assert blox("removals", "start", TENANT, "nowhere", "a/").code == 3


def test_content_is_held_and_released(stack: Stack, blox: Blox) -> None:
    put_stored(stack, "kept", "other")
    hold = blox("holds", "place", *WHERE, "kept", "--reason", "court", *_JSON).json
    assert stack.client().delete(f"/buckets/{BUCKET}/objects/kept").status_code == 409
    table = blox("holds", "list", "--tenant", TENANT).out
    assert "kept" in table
    assert "court" in table
    past = blox("holds", "place", *WHERE, "other", "--reason", "x", "--until", "2001-01-01")
    assert (past.code, past.err) == (2, "a hold ends in the future\n")
    assert blox("holds", "place", *WHERE, "absent", "--reason", "x").code == 3

    assert blox("holds", "release", str(hold["id"]), *_JSON).json["state"] == "released"

    assert blox("holds", "list").out == "no holds\n"
    assert stack.client().delete(f"/buckets/{BUCKET}/objects/kept").status_code == 204


def test_a_bucket_is_backed_up_and_restored(stack: Stack, blox: Blox) -> None:
    without = blox("backups", "start", *WHERE)
    assert (without.code, without.err) == (4, "the bucket has no rule for backups\n")
    none = blox("restores", "start", *WHERE)
    assert none.code == 3, none.err
    admin = stack.client("admin")
    spec = {"kind": "file", "settings": {"root": str(stack.channel_root.parent / "far")}}
    assert admin.put("/channels/far", json=spec).is_success
    rules = {"channels": [CHANNEL], "backup": {"target": "far", "interval_seconds": 86400}}
    assert stack.client().put(f"/buckets/{BUCKET}", json=rules).is_success

    backup = blox("backups", "start", *WHERE, *_JSON).json

    assert (backup["state"], backup["target"]) == ("open", "far")
    assert blox("backups", "start", *WHERE).code == 4
    assert blox("backups", "cancel", *WHERE, str(backup["id"]), *_JSON).json["state"] == "cancelled"
    assert "cancelled" in blox("backups", "list", *WHERE).out
    assert blox("backups", "show", *WHERE, "77").code == 3
    contents = ("backups", "items", *WHERE, str(backup["id"]), "--state", "failed")
    assert blox(*contents).out == "no contents\n"
    lost = blox("restores", "start", *WHERE, "--mode", "content", "--dry-run", *_JSON).json
    assert (lost["mode"], lost["is_dry_run"], lost["state"]) == ("content", True, "open")
    assert blox("restores", "items", *WHERE, str(lost["id"])).out == "no keys\n"
    ended = blox("restores", "cancel", *WHERE, str(lost["id"]), *_JSON).json
    assert ended["state"] == "cancelled"
    assert blox("losses").out == "nothing is lost\n"


def test_notifications_are_tried_switched_and_sent_again(stack: Stack, blox: Blox) -> None:
    order = {"url": "http://127.0.0.1:9/hook", "events": ["object.stored"]}
    own = str(stack.client().post("/subscriptions", json=order).json()["id"])
    tested = blox("subscriptions", "test", TENANT, own, *_JSON).json
    assert (tested["state"], tested["subscription_id"]) == ("pending", int(own))
    listed = blox("subscriptions", "list", TENANT, *_JSON).json
    assert [(one["url"], "secrets" in one) for one in listed] == [(order["url"], False)]
    with stack.engine.begin() as connection:
        connection.execute(sa.update(tasks).values(state="scheduled"))
    assert blox("subscriptions", "on", TENANT, own, *_JSON).json["sent_at_once"] == 1
    assert blox("subscriptions", "off", TENANT, own, *_JSON).json["is_enabled"] is False
    refused = blox("subscriptions", "test", TENANT, own)
    assert refused.code == 4
    assert "switched off" in refused.err
    assert blox("tasks", "cancel", str(tested["task_id"])).code == 0
    assert blox("subscriptions", "on", TENANT, own).code == 0
    failed = ("subscriptions", "deliveries", TENANT, own, "--state", "failed")
    assert [one["id"] for one in blox(*failed, *_JSON).json] == [tested["id"]]
    assert blox("subscriptions", "replay", TENANT, own, *_JSON).json["begun"] == 0, "not a test"
    assert blox("subscriptions", "deliveries", TENANT, "99").code == 3


def test_content_in_doubt_is_decided(stack: Stack, blox: Blox) -> None:
    stack.make_reviewed_bucket("reviewed")
    assert stack.client().put("/buckets/reviewed/objects/k", content=b"x").status_code == 202
    (review,) = blox("reviews", "list", "--tenant", TENANT, *_JSON).json
    early = blox("reviews", "approve", str(review["id"]))
    assert (early.code, early.out) == (4, "")
    with stack.engine.begin() as connection:
        connection.execute(sa.text("UPDATE reviews SET state = 'doubtful'"))
        connection.execute(sa.update(tasks).values(state="completed"))
    decided = blox("reviews", "reject", str(review["id"]), "--reason", "no", *_JSON).json
    assert (decided["state"], decided["reason"]) == ("rejected", "no")
    shown = blox("reviews", "show", str(review["id"]))
    assert "rejected" in shown.out
    assert blox("reviews", "show", "99").code == 3


def test_queues_channels_copies_and_pulls_are_looked_at(stack: Stack, blox: Blox) -> None:
    put_stored(stack, "k")
    (queue,) = [row for row in blox("queues", *_JSON).json if row["queue"] == "upload"]
    assert (queue["region"], queue["depth"], queue["consumers"]) == ("", 1, 0)
    assert blox("channels", "off", CHANNEL, *_JSON).json["is_enabled"] is False
    (channel,) = blox("channels", "list", *_JSON).json
    assert (channel["name"], channel["is_enabled"], "credentials" in channel) == (
        CHANNEL,
        False,
        False,
    )
    assert blox("channels", "on", CHANNEL).code == 0
    assert blox("channels", "off", "nowhere").code == 3
    for command, nothing in {
        ("channels", "refusals"): "no channel refuses a deletion",
        ("replicas", "list"): "no copies wait, none has failed",
        ("replicas", "rules", *WHERE): "the bucket has no rules",
        ("replicas", "audits"): "no channel was looked at yet",
        ("copies", "list", *WHERE): "no copies",
        ("pulls", "list", *WHERE): "no pulls",
    }.items():
        assert blox(*command).out == f"{nothing}\n"
    refused = blox("pulls", "start", *WHERE, "absent")
    assert (refused.code, refused.err) == (4, "no rule of the bucket counts for this key\n")
    assert blox("pulls", "show", *WHERE, "9").code == 3
    assert blox("nodes").code == 0
    shown = blox("buckets", "show", *WHERE, *_JSON).json
    assert (shown["name"], shown["lifecycle"], shown["backup"]) == (BUCKET, None, None)


def test_no_task_is_tried_again_that_nobody_would_take(
    stack: Stack, blox: Blox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As over HTTP: the same rule stands behind both."""
    assert stack.client().put(f"/buckets/{BUCKET}/objects/k", content=b"x").status_code == 202
    (task,) = blox("tasks", "list", *_JSON).json
    assert blox("tasks", "cancel", str(task["id"])).code == 0
    monkeypatch.setenv("BLOX_SERVICES__UPLOAD", "false")
    refused = blox("tasks", "retry", str(task["id"]))
    assert refused.code != 0
    assert refused.err == "the upload service is switched off in this deployment\n"
    monkeypatch.delenv("BLOX_SERVICES__UPLOAD")
    assert blox("tasks", "retry", str(task["id"]), *_JSON).json["state"] == "pending"


def test_a_region_without_workers_is_drained_and_opened_with_a_word(
    stack: Stack, blox: Blox
) -> None:
    stack.make_bucket("far", region="eu")
    refused = blox("regions", "drain", "eu")
    assert refused.code == 4
    assert "nobody consumes anything in the base queues" in refused.err
    NodeWriter(stack.deps.outbox.context).write(
        role="worker", queues=["upload", "delete"], threads=1
    )
    drained = blox("regions", "drain", "eu", *_JSON).json
    assert (drained["region"], drained["to"], drained["waiting"]) == ("eu", "(base)", 0)
    opened = blox("regions", "reopen", "eu")
    assert opened.code == 0
    assert "nobody consumes anything in region eu now" in opened.err
    assert blox("regions", "drain", "eu", "--to", "us", "--force").code == 0


def test_every_command_says_what_it_does(blox: Blox) -> None:
    groups = blox("--help").out.partition("Commands:")[2]
    for name in (line.split()[0] for line in groups.splitlines() if line.strip()):
        help_ = blox(name, "--help")
        assert help_.code == 0
        assert help_.out.splitlines()[2].strip(), f"blox {name} has no help"
