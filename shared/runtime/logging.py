"""Logs: one formatter for every logger, JSON for machines, colours for people, secrets taken out.

Code logs static event names with fields through structlog; libraries that use the standard
library's logging come out of the same handler in the same shape.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import Any, TextIO

import structlog
from structlog.types import EventDict, Processor, WrappedLogger

from shared.core.errors import BloxError
from shared.runtime.settings import LogSettings

#: Fields that never reach a log, whatever they hold.
_SECRET_FIELD = re.compile(
    r"(secret|password|passwd|authorization|credential|cookie|(access|secret|api|private)_key)s?\Z"
    r"|\Abody\Z|_token\Z|\Atoken\Z",
    re.IGNORECASE,
)
_HIDDEN = "[hidden]"
#: The password in an address, and the keys that we hand out.
_URL_PASSWORD = re.compile(r"(?<=://)([^/@\s:]*):[^/@\s]+@")
_OUR_KEY = re.compile(r"\bblox_[A-Za-z0-9_-]{16,}")
#: What makes an address a link that anybody can use.
_LINK = re.compile(r"(?<=\bblox-signature=)[^&\s]+")
_BEARER = re.compile(r"\bBearer\s+\S+", re.IGNORECASE)
#: Their chatter says nothing that our own events do not.
_QUIET = (
    "apscheduler",
    "boto3",
    "botocore",
    "dramatiq",
    "httpcore",
    "httpx",
    "s3transfer",
    "shared.runtime.database",  # the pool's own logger
    "urllib3",
    "uvicorn",
)


def configure_logging(
    settings: LogSettings, *, service: str, stream: TextIO | None = None, **bound: str
) -> None:
    """Send every log line of this process to `stream` (standard error), with `service` bound.

    Call it once at the start of a process. Later calls replace the handler.
    """
    stream = sys.stderr if stream is None else stream
    is_json = settings.format == "json" or (settings.format == "auto" and not stream.isatty())
    shared = _shared_processors({"service": service, **bound})
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(is_json=is_json, colors=stream.isatty()),
            ],
        )
    )
    root = logging.getLogger()
    for old in list(root.handlers):
        if getattr(old, "blox", False):
            root.removeHandler(old)
    handler.blox = True  # type: ignore[attr-defined]
    root.addHandler(handler)
    root.setLevel(settings.level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def drain_logs() -> None:
    """Write out what handlers still hold."""
    for handler in logging.getLogger().handlers:
        handler.flush()


def hide_secrets(value: Any, *, field: str = "") -> Any:
    """Return `value` without what must not be seen, at any depth of dicts, lists and tuples."""
    if field and _SECRET_FIELD.search(field):
        return _HIDDEN
    if isinstance(value, str):
        value = _URL_PASSWORD.sub(rf"\1:{_HIDDEN}@", value)
        value = _LINK.sub(_HIDDEN, _OUR_KEY.sub(_HIDDEN, value))
        return _BEARER.sub(f"Bearer {_HIDDEN}", value)
    if isinstance(value, dict):
        return {key: hide_secrets(part, field=str(key)) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [hide_secrets(part) for part in value]
    return value


def _shared_processors(bound: dict[str, str]) -> list[Processor]:
    def bind(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        for name, value in bound.items():
            event.setdefault(name, value)
        return event

    return [
        structlog.contextvars.merge_contextvars,
        bind,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        _add_facts,
        structlog.processors.format_exc_info,
        _hide,
    ]


def _add_facts(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Copy what an error of ours carries into fields of its own."""
    info = event.get("exc_info")
    error = sys.exc_info()[1] if info is True else info
    if isinstance(error, tuple):
        error = error[1]
    if isinstance(error, BloxError):
        event.setdefault("error_code", error.code)
        for name, value in error.facts.items():
            event.setdefault(name, value)
    return event


def _hide(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    return {name: hide_secrets(value, field=name) for name, value in event.items()}


def _renderers(*, is_json: bool, colors: bool) -> list[Processor]:
    if is_json:
        return [structlog.processors.JSONRenderer(default=str, ensure_ascii=False)]
    # Plain: the fancy formatter prints local variables, and with them keys and credentials.
    console = structlog.dev.ConsoleRenderer(
        colors=colors, pad_event_to=28, exception_formatter=structlog.dev.plain_traceback
    )
    return [_shorten, console]


def _shorten(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Leave out what a person at a terminal sees anyway: the day, and the process's own name."""
    event.pop("service", None)
    event["timestamp"] = str(event.get("timestamp", ""))[11:23]
    return event
