"""Where the output of child processes goes: to the terminal with a prefix, or to files."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from typing import IO, Protocol, TextIO

_COLORS = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)
_WIDTH = 10


class Output(Protocol):
    """What a process table needs of its log."""

    def open(self, name: str) -> int | IO[bytes]:
        """Return what the child writes to: `subprocess.PIPE` or an open file."""

    def follow(self, name: str, pipe: IO[bytes] | None) -> None:
        """Read the child's pipe, if `open` asked for one, until it ends."""

    def note(self, name: str, text: str) -> None:
        """Write a line of the supervisor's own about a child."""

    def close(self) -> None:
        """Wait a moment for the last lines."""


class FileOutput:
    """`<directory>/<name>.log` for each child, appended over restarts."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory

    def path(self, name: str) -> Path:
        """Return the file of a child."""
        return self._directory / f"{name}.log"

    def open(self, name: str) -> IO[bytes]:
        """Open the child's file at its end."""
        return self.path(name).open("ab")

    def follow(self, name: str, pipe: IO[bytes] | None) -> None:
        """Do nothing: the child writes by itself."""

    def note(self, name: str, text: str) -> None:
        """Write the line into the child's file."""
        with self.path(name).open("a") as file:
            file.write(f"-- {text}\n")

    def close(self) -> None:
        """Do nothing: nothing is held."""


class TerminalOutput:
    """All lines in one stream, each behind the name of its child, coloured on a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_colored = stream.isatty()
        self._lock = threading.Lock()
        self._colors: dict[str, int] = {}
        self._readers: list[threading.Thread] = []

    def open(self, name: str) -> int:
        """Ask for a pipe."""
        return subprocess.PIPE

    def follow(self, name: str, pipe: IO[bytes] | None) -> None:
        """Copy the child's lines from a thread of their own."""
        if pipe is None:
            return
        reader = threading.Thread(
            target=self._copy, args=(name, pipe), name=f"output-{name}", daemon=True
        )
        reader.start()
        self._readers = [known for known in self._readers if known.is_alive()] + [reader]

    def note(self, name: str, text: str) -> None:
        """Write a line of the supervisor's own."""
        self._write(name, f"-- {text}")

    def close(self) -> None:
        """Wait a moment for the last lines."""
        for reader in self._readers:
            reader.join(1.0)

    def _copy(self, name: str, pipe: IO[bytes]) -> None:
        with pipe:
            for line in pipe:
                self._write(name, line.decode(errors="replace").rstrip("\r\n"))

    def _write(self, name: str, line: str) -> None:
        prefix = f"{name:<{_WIDTH}}"
        with self._lock:
            if self._is_colored:
                color = self._colors.setdefault(name, _COLORS[len(self._colors) % len(_COLORS)])
                prefix = f"\x1b[{color}m{prefix}\x1b[0m"
            try:
                self._stream.write(f"{prefix} | {line}\n")
                self._stream.flush()
            except (OSError, ValueError):
                # The terminal is gone; the children must not notice.
                return


def ending(returncode: int | None) -> str:
    """Say how a child ended."""
    if returncode is None:
        return "still running"
    if returncode < 0:
        return f"ended by signal {-returncode}"
    return f"ended with exit code {returncode}"
