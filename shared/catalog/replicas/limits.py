"""How much the job that looks after replicas does in one turn."""

from __future__ import annotations

from dataclasses import dataclass

#: Rows that one query reads; bounds every transaction.
PAGE_ROWS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLimits:
    """Numbers of one turn.

    `backlog`: nothing is planned for a channel on which so many copies wait already. `versions`:
    what is compared with one rule. `retry_seconds`: when a failed copy is tried again.
    `grace_seconds`: how long copies outlive their rule. `sample`: locations asked for on one
    channel, in `look_seconds` at most; what was not there is asked for again after `again_seconds`
    at the earliest. The content of each is read back with the probability `deep_ratio`, and while
    `deep_bytes` last.
    """

    backlog: int = 10_000
    versions: int = 20_000
    retry_seconds: float = 3600.0
    grace_seconds: float = 3600.0
    sample: int = 1000
    look_seconds: float = 60.0
    again_seconds: float = 60.0
    deep_ratio: float = 0.01
    deep_bytes: int = 256 * 1024 * 1024
