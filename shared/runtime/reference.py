"""The page of all settings, rendered from the code; a test compares docs/settings.md with it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import pydantic
from pydantic_core import PydanticUndefined

from shared.outbox.settings import OutboxSettings
from shared.runtime.settings import DELIMITER, PREFIX, ChannelSettings, Settings

_HEAD = """\
# Settings

Every process reads the same variables, once, at its start; a fault ends it with a sentence. Times
are seconds, sizes are bytes. Groups are nested with two underscores. A mounted folder of secrets
can stand in for variables: name it in `BLOX_SECRETS_DIR`; each file in it is named like a variable.
`blox doctor` shows what is wrong or risky.

This page is generated: `python -m shared.runtime.reference > docs/settings.md`.
"""


def render() -> str:
    """Return the whole page."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield _HEAD
    groups = {name: kind for name, kind in _kinds(Settings) if _is_group(kind)}
    yield from _table("Common", Settings, PREFIX, leave_out={*groups, "channels", "outbox"})
    for name, kind in groups.items():
        yield from _table(name, kind, f"{PREFIX}{name.upper()}{DELIMITER}")
    yield from _table("channels", ChannelSettings, f"{PREFIX}CHANNELS{DELIMITER}<NAME>{DELIMITER}")
    yield "## outbox\n"
    yield f"{inspect.cleandoc(OutboxSettings.__doc__ or '')}\n"
    yield "| variable | default |"
    yield "|---|---|"
    for field in dataclasses.fields(OutboxSettings):
        yield f"| `{PREFIX}OUTBOX{DELIMITER}{field.name.upper()}` | {_shown(field.default)} |"
    yield ""


def _table(
    title: str,
    model: type[pydantic.BaseModel],
    prefix: str,
    *,
    leave_out: set[str] | None = None,
) -> Iterator[str]:
    yield f"## {title}\n"
    yield f"{inspect.cleandoc(model.__doc__ or '')}\n"
    yield "| variable | default |"
    yield "|---|---|"
    for name, field in model.model_fields.items():
        if name not in (leave_out or set()):
            yield f"| `{prefix}{name.upper()}` | {_shown(field.default)} |"
    yield ""


def _kinds(model: type[pydantic.BaseModel]) -> Iterator[tuple[str, Any]]:
    for name, field in model.model_fields.items():
        yield name, field.annotation


def _is_group(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def _shown(default: Any) -> str:
    if isinstance(default, pydantic.SecretStr):
        default = default.get_secret_value()
    if default is PydanticUndefined or default is None or default in ("", {}):
        return ""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, float):
        return f"`{default:g}`"
    return f"`{default}`"


if __name__ == "__main__":
    import sys

    sys.stdout.write(render())
