"""The demo from end to end: check the machine, start a stack, play the scenes, judge, clean up."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from services.cli.demo import scenes_basic, scenes_faults
from services.cli.demo.profile import WORKERS, shortages, variables
from services.cli.demo.screen import Screen
from services.cli.demo.world import World, open_world
from services.cli.sentences import sentence
from services.cli.supervisor import EmbeddedStack
from shared.core.errors import InvalidError, UnavailableError

_SCENES: tuple[Callable[[World], None], ...] = (
    scenes_basic.put_and_get,
    scenes_basic.same_content_again,
    scenes_basic.overwrite_while_pending,
    scenes_basic.review,
    scenes_faults.kill_the_worker,
    scenes_faults.break_the_channel,
    scenes_basic.cancel,
    scenes_faults.check_everything,
    scenes_basic.delete_everything,
)


def run_demo(files: Sequence[Path], *, directory: Path | None = None) -> int:
    """Play the demo with these files besides its own; returns an exit code.

    Everything lies in a fresh folder, which is removed at the end; when something did not hold, it
    stays, with the logs of all processes. Raises InvalidError for what is not a file or a folder,
    UnavailableError when the machine lacks disk or memory.
    """
    missing = [str(path) for path in files if not path.is_file()]
    if missing:
        raise InvalidError(f"no such file: {', '.join(missing)}")
    try:
        root = Path(tempfile.mkdtemp(prefix="blox-demo-", dir=directory))
    except OSError as error:
        raise InvalidError(f"{directory} cannot hold the demo: {error.strerror}") from error
    lacking = shortages(root)
    if lacking:
        root.rmdir()
        raise UnavailableError("\n".join(lacking))
    screen, code = Screen(), 1
    try:
        code = _play(screen, root, files)
    except KeyboardInterrupt:
        # Nobody wants to look into what they broke off themselves.
        shutil.rmtree(root, ignore_errors=True)
        raise
    except Exception as error:
        screen.say(f"the demo broke off: {type(error).__name__}: {sentence(error)}")
    if code == 0:
        shutil.rmtree(root, ignore_errors=True)
    else:
        screen.say(f"logs and data stay in {root}")
    return code


def _play(screen: Screen, root: Path, files: Sequence[Path]) -> int:
    sources = root / "sources"
    sources.mkdir()
    start = time.monotonic()
    stack = EmbeddedStack(root / "stack", variables=variables(), workers=WORKERS)
    screen.say("starting: Redis, API, scheduler, two upload workers, review, delete")
    with stack:
        screen.say(f"API at {stack.api_url}, {len(stack.pids())} processes")
        world = open_world(stack, screen, sources=sources, given=[path.resolve() for path in files])
        try:
            for scene in _SCENES:
                scene(world)
        finally:
            world.client.close()
            screen.table()
    screen.say(f"done in {time.monotonic() - start:.0f} s")
    return 0 if screen.is_good else 1
