"""Uploads in parts, as a client sends them."""

from __future__ import annotations

import hashlib
import random
import uuid
from typing import Any

import httpx

from tests.integration.api.stack import BUCKET

PART = 100_000
CONTENT = random.Random(11).randbytes(3 * PART + 777)
PARTS = [CONTENT[start : start + PART] for start in range(0, len(CONTENT), PART)]
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def begin(client: httpx.Client, **more: Any) -> dict[str, Any]:
    order = {"operation_id": uuid.uuid4().hex, "bucket": BUCKET, "key": "film.mp4", **more}
    answer = client.post("/uploads", json=order)
    assert answer.status_code == 201, answer.text
    view: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"/v1/uploads/{view['id']}"
    return view


def put(client: httpx.Client, upload: str, number: int, content: bytes, **headers: str) -> Any:
    return client.put(f"/uploads/{upload}/parts/{number}", content=content, headers=headers)


def send_all(client: httpx.Client, upload: str) -> None:
    for number in random.Random(1).sample(range(1, len(PARTS) + 1), len(PARTS)):
        answer = put(client, upload, number, PARTS[number - 1])
        assert answer.status_code == 200, answer.text
