"""Scenes in which something breaks: a killed worker, a channel that does not work."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

from services.cli.demo.client import sha256_of
from services.cli.demo.profile import LEASE_SECONDS, MIB, PART_BYTES
from services.cli.demo.watch import follow, parts_done, until
from services.cli.demo.world import BUCKET, World
from services.cli.supervisor import python_environment

LARGE_BYTES = 256 * MIB
#: Parts that are on the channel before the worker is killed.
_PARTS_BEFORE_KILL = 8


def kill_the_worker(world: World) -> None:
    """Kill the upload worker in the middle of the large file: the other goes on from there."""
    with world.screen.scene("The worker dies in the middle of 256 MiB: the other one goes on"):
        start = time.monotonic()
        path = world.make_file("256-MiB.bin", LARGE_BYTES)
        task_id = world.client.put(BUCKET, "256-MiB.bin", path).task_id
        world.stored["256-MiB.bin"] = path
        assert task_id is not None
        task = until(
            lambda: (t := world.client.task(task_id)) and parts_done(t) >= _PARTS_BEFORE_KILL and t,
            "some parts to be on the channel",
        )
        first = str(task["owner"])
        name = world.process_of(first)
        if name is None:
            raise RuntimeError(f"no process of the stack is {first}")
        pid = world.stack.kill(name)
        # It would be started again within a second, and might be the one that goes on.
        world.stack.stop_process(name)
        done = parts_done(world.client.task(task_id))
        world.screen.say(f"{name} (pid {pid}, owner {first}) killed after {done} parts")
        task = follow(world.client, world.screen, [(task_id, "256-MiB.bin")])[task_id]
        result: dict[str, Any] = task["result"] or {}
        second = str(task["owner"])
        total = -(-LARGE_BYTES // PART_BYTES)
        kept, sent = int(result.get("parts_kept", 0)), int(result.get("parts_sent", 0))
        world.screen.say(f"finished by {world.process_of(second)}, owner {second}")
        same = world.client.sha256(BUCKET, "256-MiB.bin") == sha256_of(path)
        world.screen.judge(
            "SIGKILL in the middle",
            holds=same and second != first and kept >= done and kept + sent == total,
            result=f"{kept} of {total} parts kept, {sent} sent by the other (lease "
            f"{LEASE_SECONDS:g} s), bytes equal",
            since=start,
        )
        world.stack.start_process(name)


def check_everything(world: World) -> None:
    """Run `blox check --deep` on what all this has left."""
    with world.screen.scene("After all that: every invariant, every stored byte"):
        start = time.monotonic()
        command = [sys.executable, "-m", "services.cli", "check", "--deep", "--output", "json"]
        done = subprocess.run(
            command,
            env=python_environment(world.stack.variables),
            capture_output=True,
            text=True,
            check=False,
            timeout=60.0,
        )
        breaches = json.loads(done.stdout) if done.stdout else []
        for breach in breaches:
            world.screen.say(f"{breach['invariant']}: {breach['subject']}: {breach['detail']}")
        world.screen.judge(
            "blox check --deep",
            holds=done.returncode == 0,
            result="clean" if done.returncode == 0 else done.stderr.strip() or "broken",
            since=start,
        )


def break_the_channel(world: World) -> None:
    """Make the first channel refuse every write: the second takes them."""
    with world.screen.scene("The first channel breaks: the second takes over"):
        start = time.monotonic()
        root = world.channel_root("first")
        aside = root.with_name("first.aside")
        root.rename(aside)
        root.write_text("not a folder\n")
        try:
            path = world.make_file("failover.bin", 3 * MIB)
            task_id = world.client.put(BUCKET, "failover.bin", path).task_id
            world.stored["failover.bin"] = path
            assert task_id is not None
            task = follow(world.client, world.screen, [(task_id, "failover.bin")])[task_id]
        finally:
            root.unlink()
            aside.rename(root)
        failures = [event for event in task["events"] if event["type"] == "channel_failed"]
        for event in failures:
            data = event["data"]
            world.screen.say(f"channel {data['channel']} failed: {data['code']}")
        channel = (task["result"] or {}).get("channel")
        same = world.client.sha256(BUCKET, "failover.bin") == sha256_of(path)
        world.screen.judge(
            "failover",
            holds=bool(failures) and channel == "second" and same,
            result=f"stored on {channel} after {len(failures)} failed tries on first",
            since=start,
        )
