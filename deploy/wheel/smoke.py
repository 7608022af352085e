"""Run in an empty environment by scripts/dist: the wheel alone is enough to use the outbox."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sysconfig
import tempfile
from pathlib import Path

import pydantic
import sqlalchemy as sa
from sqlalchemy.orm import Session

import shared.outbox
from shared.outbox import testing


class Welcome(pydantic.BaseModel):
    """A letter to somebody new."""

    address: str


def comes_from_the_wheel() -> None:
    """Check that nothing else of the project is here."""
    installed = Path(sysconfig.get_paths()["purelib"])
    assert Path(shared.outbox.__file__).is_relative_to(installed), shared.outbox.__file__
    for foreign in ("services", "shared.runtime", "shared.storage", "fastapi", "boto3"):
        root = foreign.partition(".")[0]
        found = importlib.util.find_spec(root) and importlib.util.find_spec(foreign)
        assert found is None, f"{foreign} came along"


def runs_a_task(folder: Path) -> None:
    """Enqueue in a transaction and run the task inline, on SQLite."""
    outbox = testing.inline_outbox(folder / "tasks.db")
    sent: list[str] = []

    @outbox.task("mail.welcome", payload=Welcome)
    def welcome(execution: shared.outbox.Execution, payload: Welcome) -> None:
        sent.append(payload.address)

    engine: sa.Engine = outbox.engine
    with Session(engine) as session, session.begin():
        outbox.enqueue(session, "mail.welcome", Welcome(address="ann@example.org"))
    assert sent == []
    assert [ran.outcome for ran in testing.run_pending(outbox)] == ["completed"]
    assert sent == ["ann@example.org"]


if __name__ == "__main__":
    comes_from_the_wheel()
    with tempfile.TemporaryDirectory() as name:
        runs_a_task(Path(name))
    version = importlib.metadata.version("blox-outbox")
    print("blox-outbox", version, "imports as shared.outbox and runs a task")
