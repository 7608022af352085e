"""Write docs/states.md from the table of transitions: `python -m scripts.states [--check]`."""

from __future__ import annotations

import sys
from pathlib import Path

from shared.outbox.states import ACTIVE, TERMINAL, TRANSITIONS, mermaid

PAGE = Path(__file__).resolve().parent.parent / "docs" / "states.md"


def render() -> str:
    """Return the page."""
    rows = "\n".join(
        f"| {move.source.value if move.source else '(new)'} | {move.target.value} "
        f"| {move.actor} | {move.reason} |"
        for move in TRANSITIONS
    )
    return (
        "# The states of a task\n\n"
        "Written by `python -m scripts.states` from `shared/outbox/states.py`; a test compares.\n\n"
        f"```mermaid\n{mermaid()}```\n\n"
        f"Waiting or running: {', '.join(sorted(ACTIVE))}. Ended: {', '.join(sorted(TERMINAL))}.\n"
        "Only an audited manual retry leaves an end. What is not in this table does not happen:\n"
        "`blox check` looks.\n\n"
        f"| from | to | who | why |\n|---|---|---|---|\n{rows}\n"
    )


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text() != render())
    PAGE.write_text(render())
