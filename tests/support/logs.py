"""Logs of tests: structlog's own shape, with plain tracebacks.

Its default draws them with rich where that is installed, which takes seconds for a deep stack.
"""

from __future__ import annotations

from typing import TextIO

import structlog


def plain_logs(stream: TextIO | None = None) -> None:
    """Log to `stream` (standard output); what was configured before is gone."""
    structlog.reset_defaults()
    *before, _ = structlog.get_config()["processors"]
    renderer = structlog.dev.ConsoleRenderer(
        colors=False, exception_formatter=structlog.dev.plain_traceback
    )
    factory = None if stream is None else structlog.PrintLoggerFactory(stream)
    structlog.configure(processors=[*before, renderer], logger_factory=factory)
