"""Asks a process whether it may be given work, as an orchestrator does."""

from __future__ import annotations

import http.client
import json
from urllib.parse import urlsplit


def not_ready_reason(health_url: str) -> str | None:
    """Ask /readyz once; None when the process is ready."""
    address = urlsplit(health_url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=2.0)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        if answer.status == http.HTTPStatus.OK:
            return None
        reasons = json.loads(answer.read()).get("reasons", {})
    except (OSError, http.client.HTTPException, ValueError):
        return "it does not answer"
    finally:
        connection.close()
    return "; ".join(map(str, reasons.values())) or "it does not say why"


def is_ready(health_url: str) -> bool:
    """Ask /readyz once."""
    return not_ready_reason(health_url) is None
