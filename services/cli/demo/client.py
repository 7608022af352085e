"""A small client of the HTTP API, as an application would write it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

#: Bytes of one read of a source file.
_CHUNK = 1024 * 1024
_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Put:
    """The answer to one PUT: 202 names a task, 200 and 201 say that the content was there."""

    status: int
    key: str
    version_id: int
    task_id: int | None
    state: str


class Client:
    """Speaks with one key. Raises httpx.HTTPStatusError for what the API refuses."""

    def __init__(self, url: str, key: str) -> None:
        self._http = httpx.Client(
            base_url=url + "/v1",
            headers={"authorization": f"Bearer {key}"},
            timeout=_TIMEOUT_SECONDS,
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def json(self, method: str, path: str, body: Any = None) -> Any:
        """Send and receive JSON; None for an answer without a body."""
        answer = self._http.request(method, path, json=body)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def put(self, bucket: str, key: str, path: Path, content_type: str = "") -> Put:
        """Stream a file into an object."""
        answer = self._http.put(
            _object_path(bucket, key),
            content=_chunks(path),
            headers={
                "content-length": str(path.stat().st_size),
                "content-type": content_type or "application/octet-stream",
            },
        )
        answer.raise_for_status()
        body = answer.json()
        return Put(answer.status_code, key, body["version_id"], body["task_id"], str(body["state"]))

    def sha256(self, bucket: str, key: str) -> str:
        """Read an object to its end and return the SHA-256 of what came."""
        digest = hashlib.sha256()
        with self._http.stream("GET", _object_path(bucket, key)) as answer:
            answer.raise_for_status()
            for chunk in answer.iter_bytes(_CHUNK):
                digest.update(chunk)
        return digest.hexdigest()

    def status(self, bucket: str, key: str) -> int:
        """Return the status of a HEAD."""
        return self._http.head(_object_path(bucket, key)).status_code

    def delete(self, bucket: str, key: str) -> None:
        """Delete an object."""
        self._http.delete(_object_path(bucket, key)).raise_for_status()

    def keys(self, bucket: str) -> list[str]:
        """Return all keys of a bucket."""
        found: list[str] = []
        cursor = ""
        while True:
            query = {"cursor": cursor} if cursor else {}
            answer = self._http.get(f"/buckets/{bucket}/objects", params=query)
            answer.raise_for_status()
            page = answer.json()
            found += [item["key"] for item in page["items"]]
            cursor = page.get("next_cursor") or ""
            if not cursor:
                return found

    def task(self, task_id: int) -> dict[str, Any]:
        """Return one task with its attempts and events."""
        found: dict[str, Any] = self.json("GET", f"/tasks/{task_id}")
        return found


def _object_path(bucket: str, key: str) -> str:
    return f"/buckets/{bucket}/objects/{quote(key)}"


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    for chunk in _chunks(path):
        digest.update(chunk)
    return digest.hexdigest()
