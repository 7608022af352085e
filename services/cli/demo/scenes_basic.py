"""Scenes in which nothing breaks: put, get, same content, overwrite, review, cancel, delete."""

from __future__ import annotations

import time

from services.cli.demo.client import sha256_of
from services.cli.demo.profile import GRACE_SECONDS, MIB
from services.cli.demo.watch import follow, states_of, until
from services.cli.demo.world import BUCKET, REVIEWED, World


def put_and_get(world: World) -> None:
    """Put small, large, source and given files; compare what comes back."""
    with world.screen.scene("Files go in, travel to their channel, and come back the same"):
        start = time.monotonic()
        files = world.ordinary_files()
        tasks = []
        for key, path in files.items():
            answer = world.client.put(BUCKET, key, path)
            world.screen.say(f"PUT {key}: {answer.status}, {answer.state}")
            world.stored[key] = path
            if answer.task_id is not None:
                tasks.append((answer.task_id, key))
        ended = follow(world.client, world.screen, tasks)
        completed = sum(task["state"] == "completed" for task in ended.values())
        equal = sum(world.client.sha256(BUCKET, key) == sha256_of(files[key]) for key in files)
        world.screen.judge(
            "put, store, get",
            holds=equal == len(files) and completed == len(tasks),
            result=f"{equal} of {len(files)} files equal by SHA-256",
            since=start,
        )


def same_content_again(world: World) -> None:
    """Put known content under another name: no second copy is written."""
    with world.screen.scene("The same content again: no second copy"):
        start = time.monotonic()
        before = world.channel_bytes()
        answer = world.client.put(BUCKET, "again.bin", world.stored["5-MiB.bin"])
        world.stored["again.bin"] = world.stored["5-MiB.bin"]
        grown = world.channel_bytes() - before
        same = world.client.sha256(BUCKET, "again.bin") == sha256_of(world.stored["5-MiB.bin"])
        world.screen.say(f"PUT again.bin: {answer.status}, {answer.state}, no task")
        world.screen.judge(
            "instant upload",
            holds=answer.task_id is None and answer.state == "stored" and grown == 0 and same,
            result=f"stored at once, channels grew by {grown} bytes",
            since=start,
        )


def overwrite_while_pending(world: World) -> None:
    """Overwrite a name whose first upload has not ended: that one is superseded."""
    with world.screen.scene("An overwrite supersedes the upload that is still on its way"):
        start = time.monotonic()
        first_file = world.make_file("first.bin", 48 * MIB)
        second_file = world.make_file("second.bin", 2 * MIB)
        first = world.client.put(BUCKET, "name.bin", first_file)
        second = world.client.put(BUCKET, "name.bin", second_file)
        world.stored["name.bin"] = second_file
        assert first.task_id is not None
        assert second.task_id is not None
        ended = follow(
            world.client, world.screen, [(first.task_id, "first"), (second.task_id, "second")]
        )
        old, new = ended[first.task_id], ended[second.task_id]
        same = world.client.sha256(BUCKET, "name.bin") == sha256_of(second_file)
        world.screen.judge(
            "overwrite while pending",
            holds=(old["state"], old["error_code"], new["state"])
            == ("cancelled", "superseded", "completed")
            and same,
            result=f"first {old['state']} ({old['error_code']}), second {new['state']} and read",
            since=start,
        )


def review(world: World) -> None:
    """Put into the reviewed bucket what passes and what does not."""
    with world.screen.scene("A reviewed bucket stores what passes, and nothing else"):
        start = time.monotonic()
        good, bad = world.sources / "letter.txt", world.sources / "bad.txt"
        good.write_text("A letter about the weather.\n")
        bad.write_text("We offer Contraband of all sorts.\n")
        tasks = []
        for path in (good, bad):
            answer = world.client.put(REVIEWED, path.name, path, "text/plain")
            assert answer.task_id is not None
            tasks.append((answer.task_id, f"review of {path.name}"))
        follow(world.client, world.screen, tasks)
        until(lambda: world.client.status(REVIEWED, good.name) == 200, "the letter to be readable")
        refused = world.client.status(REVIEWED, bad.name)
        same = world.client.sha256(REVIEWED, good.name) == sha256_of(good)
        world.screen.judge(
            "review",
            holds=same and refused == 404,
            result=f"clean text stored, text with a blocked word answers {refused}",
            since=start,
        )


def cancel(world: World) -> None:
    """Cancel an upload that runs; it never completes."""
    with world.screen.scene("A cancelled task never completes"):
        start = time.monotonic()
        path = world.make_file("cancelled.bin", 64 * MIB)
        answer = world.client.put(BUCKET, "cancelled.bin", path)
        task_id = answer.task_id
        assert task_id is not None
        until(lambda: world.client.task(task_id)["state"] == "running", "the upload to run")
        reply = world.client.json("POST", f"/tasks/{task_id}:cancel", {"reason": "the demo"})
        world.screen.say(f"POST /tasks/{task_id}:cancel: {reply['state']}")
        task = follow(world.client, world.screen, [(task_id, "cancelled.bin")])[task_id]
        world.stored["cancelled.bin"] = path
        world.screen.judge(
            "cancel",
            holds=task["state"] == "cancelled" and "completed" not in states_of(task),
            result=f"{reply['state']}, then {task['state']}",
            since=start,
        )


def delete_everything(world: World) -> None:
    """Delete all objects; their bytes go after the grace."""
    with world.screen.scene(f"Deleted content is gone after the grace of {GRACE_SECONDS:g} s"):
        start = time.monotonic()
        before = world.channel_bytes()
        for bucket in (BUCKET, REVIEWED):
            for key in world.client.keys(bucket):
                world.client.delete(bucket, key)
        world.screen.say(f"all objects deleted; {before:,} bytes lie on the channels")
        left = [key for bucket in (BUCKET, REVIEWED) for key in world.client.keys(bucket)]
        until(lambda: world.channel_bytes() == 0, "the channels to be empty")
        waited = time.monotonic() - start
        world.screen.judge(
            "delete",
            holds=not left and waited >= GRACE_SECONDS and before > 0,
            result=f"{before:,} bytes before, 0 after {waited:.1f} s",
            since=start,
        )
