"""Saying once that something is away, and once that it is back: outages must not flood the logs."""

from __future__ import annotations

from typing import Any


class Outage:
    """Remembers whether something was away at the last look."""

    def __init__(self, log: Any, what: str) -> None:
        self._log = log
        self._what = what
        self._is_away = False

    def away(self, **facts: object) -> None:
        """Note that it did not answer; logged only when it did before."""
        if not self._is_away:
            self._is_away = True
            self._log.warning(f"{self._what}_away", **facts)

    def back(self, **facts: object) -> None:
        """Note that it answered; logged only when it did not before."""
        if self._is_away:
            self._is_away = False
            self._log.info(f"{self._what}_back", **facts)
