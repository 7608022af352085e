"""What the demo writes: scenes, tasks moving through their states, and a table at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.table import Table

_COLORS = {
    "completed": "green",
    "stored": "green",
    "failed": "red",
    "cancelled": "yellow",
    "running": "cyan",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line of the final table."""

    what: str
    holds: bool
    result: str
    seconds: float


class Screen:
    """Writes to the terminal and keeps the verdicts."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)
        self._begin = time.monotonic()
        self.verdicts: list[Verdict] = []

    @contextmanager
    def scene(self, title: str) -> Iterator[None]:
        """Head what follows."""
        self._console.print(f"\n[bold]{escape(title)}[/bold]")
        yield

    def say(self, text: str) -> None:
        """Write one line with the time since the start."""
        stamp = f"{time.monotonic() - self._begin:6.1f}s"
        self._console.print(f"[dim]{stamp}[/dim]  {escape(text)}")

    def move(self, task_id: int, name: str, states: list[str], note: str = "") -> None:
        """Write how a task has moved so far."""
        shown = " → ".join(
            f"[{_COLORS.get(state, 'default')}]{escape(state)}[/]" for state in states
        )
        stamp = f"{time.monotonic() - self._begin:6.1f}s"
        rest = f"  [dim]{escape(note)}[/dim]" if note else ""
        self._console.print(f"[dim]{stamp}[/dim]  task {task_id} {escape(name)}: {shown}{rest}")

    def judge(self, what: str, *, holds: bool, result: str, since: float) -> None:
        """Keep a verdict; `since` is the monotonic time at which its work began."""
        verdict = Verdict(what, holds, result, time.monotonic() - since)
        self.verdicts.append(verdict)
        mark = "[green]holds[/green]" if holds else "[red]DOES NOT HOLD[/red]"
        self._console.print(f"         {mark}  {escape(what)}: {escape(result)}")

    def table(self) -> None:
        """Write the table of all verdicts."""
        table = Table(title="What was shown", title_justify="left")
        table.add_column("what")
        table.add_column("result")
        table.add_column("time", justify="right")
        for verdict in self.verdicts:
            color = "green" if verdict.holds else "red"
            mark = "ok" if verdict.holds else "FAILED"
            table.add_row(
                escape(verdict.what),
                f"[{color}]{mark}[/{color}] {escape(verdict.result)}",
                f"{verdict.seconds:.1f} s",
            )
        self._console.print()
        self._console.print(table)

    @property
    def is_good(self) -> bool:
        """Tell whether everything held."""
        return bool(self.verdicts) and all(verdict.holds for verdict in self.verdicts)
