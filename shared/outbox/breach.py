"""What a check of invariants reports: one thing of which one of them does not hold."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Breach:
    """An invariant that does not hold of one thing, and what was seen."""

    invariant: str
    subject: str
    detail: str
