"""The README's example runs as it stands: one mail, no more, and a clean end."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from aiosmtpd.controller import Controller
from sqlalchemy.orm import Session

import shared.outbox
from shared.outbox.schema import tasks
from tests.servers.ports import free_port
from tests.support.eventually import eventually, never

ROOT = Path(__file__).resolve().parents[3]
README = Path(shared.outbox.__file__).with_name("README.md")


class Inbox:
    """Keeps the mails that the loopback SMTP server takes."""

    def __init__(self) -> None:
        self.mails: list[tuple[list[str], bytes]] = []

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
        self.mails.append((envelope.rcpt_tos, envelope.content))
        return "250 OK"


def example() -> str:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    return str(blocks[0])


@pytest.mark.databases("sqlite")
def test_the_example_sends_its_mail_once(
    database_url: str, private_redis: Any, tmp_path: Path
) -> None:
    script = tmp_path / "welcome.py"
    script.write_text(example())
    inbox = Inbox()
    server = Controller(inbox, hostname="127.0.0.1", port=free_port())
    server.start()
    try:
        command = [sys.executable, str(script), database_url, private_redis.url, str(server.port)]
        process = subprocess.Popen(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
        try:
            eventually(lambda: len(inbox.mails) == 1, 30)
            engine = sa.create_engine(database_url)
            with Session(engine) as session:
                eventually(
                    lambda: (
                        session.scalar(sa.select(tasks.c.state)) == "completed"
                        or session.rollback()
                    ),
                    10,
                )
            engine.dispose()
            never(lambda: len(inbox.mails) > 1, during=0.5)
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
    finally:
        server.stop()
    recipients, content = inbox.mails[0]
    assert recipients == ["ada@example.com"]
    assert b"Glad you are here." in content


def test_the_example_is_about_ten_lines_of_its_own() -> None:
    lines = [line for line in example().splitlines() if line.strip()]
    assert len(lines) <= 20
