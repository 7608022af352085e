"""What a process says of its own outbox, without asking anybody."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OutboxHealth:
    """What probes ask: `faults` make a process not live, `missing` make it not ready."""

    faults: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def is_live(self) -> bool:
        """Tell whether the process should be left running."""
        return not self.faults

    @property
    def is_ready(self) -> bool:
        """Tell whether the process does its work now."""
        return not self.faults and not self.missing
