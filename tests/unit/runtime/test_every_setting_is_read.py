"""A setting that nothing reads is a promise that nobody keeps."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pydantic

from shared.outbox.settings import OutboxSettings
from shared.runtime.settings import ServicesSettings, Settings

ROOT = Path(__file__).resolve().parents[3]


def leaves(model: type[pydantic.BaseModel]) -> set[str]:
    found = set()
    for name, field in model.model_fields.items():
        kind = field.annotation
        if kind is ServicesSettings:
            found.add("switched_off")  # its fields are read together
        elif isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
            found |= leaves(kind)
        elif kind is not OutboxSettings:
            found.add(name)
    return found | {field.name for field in dataclasses.fields(OutboxSettings)}


def test_every_setting_is_read_somewhere() -> None:
    declared = {ROOT / "shared/runtime/settings.py", ROOT / "shared/outbox/settings.py"}
    files = [*(ROOT / "shared").rglob("*.py"), *(ROOT / "services").rglob("*.py")]
    code = "\n".join(path.read_text() for path in files if path not in declared)
    unread = sorted(name for name in leaves(Settings) if not re.search(rf"\.{name}\b", code))
    assert unread == []
