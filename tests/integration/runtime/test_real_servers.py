"""The same stack on a real database, a real Redis and S3, by settings alone."""

from __future__ import annotations

import hashlib
import json
import os
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from services.cli.supervisor import EmbeddedStack
from tests.servers.moto import S3Server
from tests.support.eventually import eventually


@pytest.mark.databases("mariadb")
def test_addresses_and_channels_in_the_settings_replace_what_is_embedded(
    database_url: str, redis_url: str, namespace: str, moto: S3Server, tmp_path: Path
) -> None:
    body = os.urandom(300_000)
    with EmbeddedStack(
        tmp_path,
        workers={"upload": 1},
        variables={
            "BLOX_DATABASE_URL": database_url,
            "BLOX_REDIS_URL": redis_url,
            "BLOX_NAMESPACE": namespace,
            "BLOX_CHANNELS__MAIN__KIND": "s3",
            "BLOX_CHANNELS__MAIN__ENDPOINT": moto.endpoint,
            "BLOX_CHANNELS__MAIN__BUCKET": f"bucket-{namespace}",
            "BLOX_CHANNELS__MAIN__ACCESS_KEY": moto.access_key,
            "BLOX_CHANNELS__MAIN__SECRET_KEY": moto.secret_key,
        },
    ) as stack:
        assert set(stack.pids()) == {"api", "scheduler", "upload"}
        assert not stack.layout.database.exists()

        def call(method: str, path: str, data: bytes | None = None) -> bytes:
            request = urllib.request.Request(
                stack.api_url + path,
                data=data,
                method=method,
                headers={
                    "Authorization": f"Bearer {stack.admin_key}",
                    "Content-Type": "application/json",
                },
            )
            with urllib.request.urlopen(request, timeout=30.0) as answer:
                found: bytes = answer.read()
                return found

        def task(task_id: int) -> Any:
            return json.loads(call("GET", f"/v1/tasks/{task_id}"))

        call("PUT", "/v1/buckets/first", b'{"channels": ["main"]}')
        put = json.loads(call("PUT", "/v1/buckets/first/objects/file.bin", body))
        done = eventually(
            lambda: (t := task(put["task_id"]))["state"] == "completed" and t, timeout=20.0
        )
        assert done["result"]["channel"] == "main"
        got = call("GET", "/v1/buckets/first/objects/file.bin")
        assert hashlib.sha256(got).digest() == hashlib.sha256(body).digest()
