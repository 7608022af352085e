"""Asking a health port from tests."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit


def ask(health_url: str, path: str) -> tuple[int, dict[str, Any]]:
    """Return status and answer of /livez or /readyz."""
    status, text = read(health_url, path)
    return status, json.loads(text)


def read(health_url: str, path: str) -> tuple[int, str]:
    """Return status and text of any path."""
    address = urlsplit(health_url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=5.0)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()
