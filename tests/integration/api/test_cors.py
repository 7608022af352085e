"""Pages of other origins: allowed by name, and told nothing when they are not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.api.stack import BUCKET, Stack, running_stack

pytestmark = pytest.mark.databases("sqlite")
PAGE, STRANGER = "https://app.example", "https://stranger.example"


@pytest.fixture
def open_stack(blox_url: str, redis_url: str, namespace: str, tmp_path: Path) -> Iterator[Stack]:
    """The application for pages of one origin."""
    origins = f"{PAGE}, https://other.example"
    with running_stack(blox_url, redis_url, namespace, tmp_path, cors_origins=origins) as running:
        yield running


def preflight(stack: Stack, path: str, method: str, origin: str) -> httpx.Response:
    wanted = "authorization,content-md5,x-blox-sha256,x-blox-meta-colour"
    return httpx.options(
        f"{stack.address.url}/v1{path}",
        headers={
            "origin": origin,
            "access-control-request-method": method,
            "access-control-request-headers": wanted,
        },
    )


def test_named_origin_may_do_everything_that_its_key_may(open_stack: Stack) -> None:
    for path, method in (
        ("/uploads", "POST"),
        ("/uploads/x/parts/1", "PUT"),
        ("/uploads/x:complete", "POST"),
        (f"/buckets/{BUCKET}/objects/a/b", "PUT"),
        (f"/buckets/{BUCKET}/objects/a/b", "DELETE"),
    ):
        answer = preflight(open_stack, path, method, PAGE)
        assert answer.status_code == 200, answer.text
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert method in answer.headers["access-control-allow-methods"]
        allowed = answer.headers["access-control-allow-headers"].lower()
        for header in ("authorization", "content-md5", "x-blox-sha256", "x-blox-meta-colour"):
            assert header in allowed
        assert "access-control-allow-credentials" not in answer.headers
    with open_stack.client() as client:
        answer = client.put(
            f"/buckets/{BUCKET}/objects/a", content=b"hello", headers={"origin": PAGE}
        )
        assert answer.status_code == 202
        assert answer.headers["access-control-allow-origin"] == PAGE
        exposed = answer.headers["access-control-expose-headers"].lower().split(", ")
        assert {"etag", "x-blox-expires-at", "*"} <= set(exposed)
        # An error can be read as well.
        missing = client.get("/uploads/none", headers={"origin": PAGE})
        assert missing.status_code == 404
        assert missing.headers["access-control-allow-origin"] == PAGE
    refused = httpx.get(f"{open_stack.address.url}/v1/uploads/none", headers={"origin": PAGE})
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, PAGE)


def test_other_origins_are_not_let_in(open_stack: Stack) -> None:
    answer = preflight(open_stack, "/uploads", "POST", STRANGER)
    assert answer.status_code == 400
    assert "access-control-allow-origin" not in answer.headers
    with open_stack.client() as client:
        answer = client.get("/buckets", headers={"origin": STRANGER})
        assert "access-control-allow-origin" not in answer.headers


def test_without_the_setting_nobody_is(stack: Stack) -> None:
    answer = preflight(stack, "/uploads", "POST", PAGE)
    assert answer.status_code == 405
    assert not any(name.startswith("access-control-") for name in answer.headers)
    with stack.client() as client:
        answer = client.get("/buckets", headers={"origin": PAGE})
        assert not any(name.startswith("access-control-") for name in answer.headers)
