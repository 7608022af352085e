"""The example page in a real browser: an upload that goes on after a reload."""

from __future__ import annotations

import os
import re
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from playwright.sync_api import Page, Request, Route, expect

from tests.integration.api.stack import BUCKET, Stack, running_stack
from tests.integration.api.working import uploading_worker
from tests.support.browser import pages_of, running_browser

pytestmark = [pytest.mark.databases("sqlite"), pytest.mark.needs_root]

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "resumable-upload"
PART = 128 * 1024
CONTENT = os.urandom(7 * PART + 1)
#: The parts that reach the server before the reload.
LET_THROUGH = {1, 2, 4}
_SECONDS = 20_000


def test_upload_goes_on_after_a_reload(
    blox_url: str, redis_url: str, namespace: str, tmp_path: Path
) -> None:
    film = tmp_path / "film.mp4"
    film.write_bytes(CONTENT)
    with (
        pages_of(EXAMPLE) as origin,
        running_stack(
            blox_url,
            redis_url,
            namespace,
            tmp_path,
            cors_origins=origin,
            max_part_bytes=PART,
        ) as stack,
        uploading_worker(stack, redis_url, namespace),
        stack.client() as client,
        running_browser() as browser,
    ):
        page = browser.new_page()
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(origin)
        page.fill("#api", f"{stack.address.url}/v1")
        page.fill("#key", stack.secret())
        page.fill("#bucket", BUCKET)
        page.route(re.compile(r"/parts/\d+$"), _hold)
        _start(page, film)
        expect(page.locator("#told")).to_have_text(
            f"{len(LET_THROUGH) * PART} of {len(CONTENT)} bytes", timeout=_SECONDS
        )
        assert _there(stack, client) == LET_THROUGH

        # In this order: what is held is given up by the reload, and not let through.
        page.reload()
        page.unroute_all(behavior="ignoreErrors")
        sent: set[int] = set()
        page.on("request", lambda request: sent.update(_part_of(request)))
        assert page.input_value("#bucket") == BUCKET
        _start(page, film)
        expect(page.locator("#told")).to_contain_text("Done: version", timeout=_SECONDS)
        assert sent == set(range(1, 9)) - LET_THROUGH
        assert client.get(f"/buckets/{BUCKET}/objects/film.mp4").content == CONTENT
        assert stack.count("upload_sessions") == 1
        # What it remembered is gone: the same file would be another upload.
        assert page.evaluate("localStorage.length") == 0

        page.route(re.compile(r"/parts/\d+$"), _hold)
        _start(page, film)
        expect(page.locator("#told")).to_contain_text("bytes", timeout=_SECONDS)
        page.click("#pause")
        expect(page.locator("#told")).to_have_text("Paused. Start goes on.", timeout=_SECONDS)
        assert stack.count("upload_sessions") == 2
        page.click("#forget")
        expect(page.locator("#told")).to_contain_text("Given up", timeout=_SECONDS)
        assert (stack.count("upload_sessions"), stack.count("upload_parts")) == (1, 0)
        assert faults == []


def _start(page: Page, file: Path) -> None:
    page.set_input_files("#file", file)
    page.click("#start")


def _hold(route: Route) -> None:
    """Let some parts through, and leave the others on their way for ever."""
    if _part_of(route.request) & LET_THROUGH:
        route.continue_()


def _part_of(request: Request) -> set[int]:
    found = re.search(r"/parts/(\d+)$", request.url)
    return {int(found[1])} if found and request.method == "PUT" else set()


def _there(stack: Stack, client: httpx.Client) -> set[int]:
    with stack.engine.connect() as connection:
        upload = connection.execute(sa.text("SELECT public_id FROM upload_sessions")).scalar_one()
    return {part["number"] for part in client.get(f"/uploads/{upload}").json()["parts"]}
