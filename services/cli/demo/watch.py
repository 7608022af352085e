"""Watching tasks through the API until they have ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from services.cli.demo.client import Client
from services.cli.demo.screen import Screen
from shared.core.clock import Deadline
from shared.core.errors import UnavailableError

_ENDED = frozenset({"completed", "failed", "cancelled"})
_LOOK_SECONDS = 0.04
#: Seconds until a watched thing counts as stuck.
PATIENCE_SECONDS = 60.0


def states_of(task: dict[str, Any]) -> list[str]:
    """Return the states that a task's recorded transitions and its row name, in order."""
    states: list[str] = []
    for event in task["events"]:
        for state in (event["data"].get("from"), event["data"].get("to")):
            if state and (not states or states[-1] != state):
                states.append(state)
    if not states or states[-1] != task["state"]:
        states.append(task["state"])
    return states


def follow(
    client: Client, screen: Screen, tasks: Sequence[tuple[int, str]]
) -> dict[int, dict[str, Any]]:
    """Show every change of these (task id, name) until all have ended; returns them as they are."""
    seen: dict[int, list[str]] = {task_id: [] for task_id, _ in tasks}
    ended: dict[int, dict[str, Any]] = {}
    deadline = Deadline(PATIENCE_SECONDS)
    while len(ended) < len(tasks):
        for task_id, name in tasks:
            if task_id in ended:
                continue
            task = client.task(task_id)
            state = task["state"]
            states = seen[task_id]
            if not states or states[-1] != state:
                states.append(state)
                screen.move(task_id, name, states, _note(task))
            if state in _ENDED:
                ended[task_id] = task
        if deadline.expired():
            left = [name for task_id, name in tasks if task_id not in ended]
            raise UnavailableError(f"these tasks did not end: {', '.join(left)}")
        time.sleep(_LOOK_SECONDS)
    return ended


def until(look: Callable[[], Any], what: str, seconds: float = PATIENCE_SECONDS) -> Any:
    """Return the first true answer of `look`; UnavailableError when it takes too long."""
    deadline = Deadline(seconds)
    while not (found := look()):
        if deadline.expired():
            raise UnavailableError(f"waited {seconds:g} s in vain for: {what}")
        time.sleep(_LOOK_SECONDS)
    return found


def parts_done(task: dict[str, Any]) -> int:
    """Return how many parts of an upload its checkpoint events tell of."""
    return max(
        (int(event["data"]["parts_done"]) for event in task["events"] if event["type"] == "part"),
        default=0,
    )


def _note(task: dict[str, Any]) -> str:
    result = task.get("result") or {}
    if task["state"] == "completed" and result.get("channel"):
        return f"on channel {result['channel']}"
    if task["state"] in ("failed", "cancelled"):
        return str(task.get("error_code") or "")
    return ""
