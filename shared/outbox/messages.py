"""The names and bytes in Redis: queues, keys, and the message that carries two ids only."""

from __future__ import annotations

import json

from dramatiq import Message


def queue_key(queue: str, region: str = "") -> str:
    """Return the name of a queue in Redis: the base queue, or the queue of one region."""
    return f"{queue}.{region}" if region else queue


def split_queue_key(name: str) -> tuple[str, str]:
    """Return (queue, region) of a name in Redis."""
    queue, _, region = name.partition(".")
    return queue, region


def encode(queue_name: str, task_id: int, dispatch_id: str) -> str:
    """Return a Dramatiq message for one dispatch, as its JSON encoder would write it.

    The message id is the dispatch id; the actor is named like the base queue.
    """
    actor_name = queue_name.partition(".")[0]
    return (
        f'{{"queue_name":"{queue_name}","actor_name":"{actor_name}","args":[],'
        f'"kwargs":{{"task_id":{task_id},"dispatch_id":"{dispatch_id}"}},"options":{{}},'
        f'"message_id":"{dispatch_id}","message_timestamp":0}}'
    )


def decode(data: bytes | str, queue_name: str = "") -> Message[None]:
    """Return the message of these bytes, as one of the queue in whose list it was found.

    Somebody may have moved it there; Dramatiq's threads end when they get a message of a queue that
    they do not know. Raises ValueError, KeyError and the like when it is none of ours.
    """
    fields = json.loads(data)
    kwargs = fields["kwargs"]
    queue_name = queue_name or str(fields["queue_name"])
    return Message(
        queue_name=queue_name,
        actor_name=queue_name.partition(".")[0],
        args=(),
        kwargs={"task_id": int(kwargs["task_id"]), "dispatch_id": str(kwargs["dispatch_id"])},
        options={},
        message_id=str(fields["message_id"]),
        message_timestamp=int(fields["message_timestamp"]),
    )
