"""How long an exchange may wait, and how much it may bring."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """Limits of one exchange; the caller's deadline bounds all of its hops together.

    `connect_seconds` is for name, connection and TLS of one hop, `head_seconds` for its answer's
    head, `idle_seconds` for each silence. `max_body_bytes` None leaves the size open.
    """

    connect_seconds: float = 10.0
    head_seconds: float = 30.0
    idle_seconds: float = 30.0
    max_head_bytes: int = 64 * 1024
    max_body_bytes: int | None = None
    max_redirects: int = 5
