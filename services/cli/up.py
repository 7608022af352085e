"""`blox up`: the embedded stack in this terminal until Ctrl-C."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TextIO

from services.cli.output import TerminalOutput
from services.cli.supervisor import EmbeddedStack
from shared.core.errors import BloxError
from shared.runtime.settings import own_variables
from shared.runtime.shutdown import StopRequest

#: Where the stack keeps its data when nothing else is said.
DEFAULT_DIRECTORY = Path(".blox")

_BANNER = """
  Cloudblox runs.

    API        {api}/v1
    OpenAPI    {api}/docs
    admin key  {key}   (tenant {tenant})
    data       {directory}

  Ctrl-C stops it.
"""


def run_up(directory: Path = DEFAULT_DIRECTORY, *, stream: TextIO | None = None) -> int:
    """Run the stack until SIGINT or SIGTERM, and return an exit code.

    `BLOX_*` of the environment go to all processes. A second signal changes nothing: the ordered
    stop goes on, and it is bounded in time. Raises what `EmbeddedStack.start` raises, but not once
    it was asked to stop.
    """
    stream = sys.stdout if stream is None else stream
    stop = StopRequest()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        stop.request(signal.Signals(number).name)

    old = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    stack = EmbeddedStack(
        directory,
        variables=own_variables(),
        output=TerminalOutput(stream),
        is_for_people=True,
        is_aborted=lambda: stop.wait(0.0),
    )
    try:
        stack.start()
        stream.write(
            _BANNER.format(
                api=stack.api_url,
                key=stack.admin_key,
                tenant=stack.admin_tenant,
                directory=stack.layout.root,
            )
        )
        stream.flush()
        stop.wait()
        stream.write("Stopping: API, then workers and scheduler, then Redis.\n")
        killed = stack.stop()
    except BloxError:
        if stop.event.is_set():
            return 0
        raise
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
    return 1 if killed else 0
