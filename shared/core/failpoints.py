"""Named points where a test may make this process die, stop or wait.

Disarmed unless a setting arms them. A point costs one dictionary look-up when nothing is armed.
"""

from __future__ import annotations

import os
import random
import signal
import time

_armed: dict[str, tuple[str, float]] = {}


def arm(spec: str) -> None:
    """Arm points from text: ``name=action[:number]``, separated by commas.

    Actions: ``kill`` (SIGKILL itself, with the probability `number`, default 1), ``stop``
    (SIGSTOP itself), ``sleep`` (`number` seconds), ``raise`` (RuntimeError). An empty text
    disarms all.
    """
    _armed.clear()
    for item in filter(None, (part.strip() for part in spec.split(","))):
        name, _, rest = item.partition("=")
        action, _, number = rest.partition(":")
        if action not in {"kill", "stop", "sleep", "raise"}:
            raise ValueError(f"failpoint {name!r}: unknown action {action!r}")
        _armed[name] = (action, float(number or 1))


def failpoint(name: str) -> None:
    """Do what was armed for this point, usually nothing."""
    if not _armed:
        return
    armed = _armed.get(name)
    if armed is None:
        return
    action, number = armed
    if action == "sleep":
        time.sleep(number)
    elif action == "raise":
        raise RuntimeError(f"failpoint {name}")
    elif action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif random.random() < number:
        os.kill(os.getpid(), signal.SIGKILL)
