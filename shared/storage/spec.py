"""What a channel is made from, as the catalogue stores it, and what is allowed there."""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from shared.core.errors import InvalidError
from shared.storage.breaker import FAILURES, OPEN_SECONDS
from shared.storage.errors import InvalidKey
from shared.storage.keys import check_key

T = TypeVar("T")

#: Bytes of a part: large enough that a request costs little, small enough to be asked between
#: parts.
PART_BYTES = 16 * 1024 * 1024
#: S3 refuses smaller parts but the last.
S3_LEAST_PART_BYTES = 5 * 1024 * 1024
#: A longer pause would leave a channel alone that has long been well.
LONGEST_OPEN_SECONDS = 86_400.0
#: Above this it is no limit.
MOST_RUNNING = 100_000

_MOST = 2**63 - 1
_BUCKET = re.compile(r"[A-Za-z0-9._-]{1,255}\Z")
_REGION = re.compile(r"[A-Za-z0-9-]{0,63}\Z")
_ACCESS_KEY = re.compile(r"[!-~]{1,1024}\Z")


@dataclass(frozen=True, slots=True)
class ChannelSpec:
    """A channel's name, kind, settings and secrets. Secrets never show in its text."""

    name: str
    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Settings that every kind has."""

    part_bytes: int = PART_BYTES
    #: Parts under way at once; 0 is the kind's own choice (file 1, s3 2: more gained nothing).
    parallel_parts: int = 0
    #: Bytes per second of all transfers of this channel in one process, each direction; 0 is no
    #: limit.
    bandwidth_bytes_per_second: int = 0
    #: Executions that may use it at a time, over all processes; 0 is no limit.
    max_running: int = 0
    breaker_failures: int = FAILURES
    breaker_open_seconds: float = OPEN_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSettings:
    """Settings of the ``file`` kind."""

    root: str
    #: Make the directory at the first use, instead of only by `prepare_channel`. An unmounted
    #: volume then looks like a new channel: leave it off where volumes are mounted.
    create: bool = False


_TUNING = {item.name for item in dataclasses.fields(Tuning)}


def read_tuning(spec: ChannelSpec) -> Tuning:
    """Return the common settings of a spec, or raise InvalidError naming the one that is wrong."""
    tuning = _build(spec, Tuning, {k: v for k, v in spec.settings.items() if k in _TUNING})
    least = S3_LEAST_PART_BYTES if spec.kind == "s3" else 4096
    _demand(spec, "part_bytes", least <= tuning.part_bytes <= 5 * 1024**3)
    _demand(spec, "parallel_parts", 0 <= tuning.parallel_parts <= 16)
    _demand(spec, "bandwidth_bytes_per_second", tuning.bandwidth_bytes_per_second >= 0)
    _demand(spec, "max_running", 0 <= tuning.max_running <= MOST_RUNNING)
    _demand(spec, "breaker_failures", tuning.breaker_failures >= 1)
    _demand(spec, "breaker_open_seconds", 0 < tuning.breaker_open_seconds <= LONGEST_OPEN_SECONDS)
    return tuning


def read_own(spec: ChannelSpec, settings_of_kind: type[T]) -> T:
    """Return the settings of the spec's kind, secrets included, or raise InvalidError."""
    own = {k: v for k, v in spec.settings.items() if k not in _TUNING}
    for item in dataclasses.fields(settings_of_kind):  # type: ignore[arg-type]
        # What is secret stands in no text of the settings, and in no settings either.
        if not item.repr and item.name in own:
            raise _invalid(spec, item.name, "is a secret: it belongs to the credentials")
    for name in spec.secrets:
        if name in own:
            raise _invalid(spec, name, "stands in settings and secrets")
    settings = _build(spec, settings_of_kind, {**own, **spec.secrets})
    _check_own(spec, settings)
    return settings


def _check_own(spec: ChannelSpec, settings: object) -> None:
    if isinstance(settings, FileSettings):
        _demand(spec, "root", Path(settings.root).is_absolute() and "\0" not in settings.root)
        return
    values = vars_of(settings)
    _demand(spec, "endpoint", _is_endpoint(values["endpoint"]))
    _demand(spec, "bucket", bool(_BUCKET.match(values["bucket"])))
    _demand(spec, "region", bool(_REGION.match(values["region"])))
    # The one stands in a header of each request, the other signs it.
    _demand(spec, "access_key", bool(_ACCESS_KEY.match(values["access_key"])))
    _demand(spec, "secret_key", bool(values["secret_key"]))
    _demand(spec, "connect_timeout_seconds", 0 < values["connect_timeout_seconds"] <= 60)
    _demand(spec, "read_timeout_seconds", 0 < values["read_timeout_seconds"] <= 600)
    # The pool makes a place for each of them at once.
    _demand(spec, "connections", 1 <= values["connections"] <= 1000)
    _demand(spec, "page_names", 1 <= values["page_names"] <= 1000)
    _demand(spec, "copy_part_bytes", values["copy_part_bytes"] >= S3_LEAST_PART_BYTES)
    if prefix := values["prefix"]:
        try:
            check_key(f"{prefix}x")
        except InvalidKey as error:
            raise _invalid(spec, "prefix", str(error)) from None


def _is_endpoint(text: str) -> bool:
    """Tell whether this is the address of a server: no user, no blanks, a port that can be."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    return (
        parts.scheme in {"http", "https"}
        and bool(parts.hostname)
        and bool(re.fullmatch(r"[A-Za-z0-9._:\[\]-]+", parts.netloc))
        and port != 0
        and not parts.query
        and not parts.fragment
    )


def vars_of(settings: Any) -> dict[str, Any]:
    """Return the fields of a settings object by name."""
    return {item.name: getattr(settings, item.name) for item in dataclasses.fields(settings)}


def _build(spec: ChannelSpec, kind: type[T], values: Mapping[str, Any]) -> T:
    hints = typing.get_type_hints(kind)
    for name, value in values.items():
        if name not in hints:
            raise _invalid(spec, name, "there is no such setting")
        if not _fits(value, hints[name]):
            raise _invalid(spec, name, "has a value of the wrong type or form")
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    for item in fields:
        if item.default is dataclasses.MISSING and item.name not in values:
            raise _invalid(spec, item.name, "is missing")
    return kind(**values)


def _fits(value: object, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return value in typing.get_args(hint)
    if origin in {types.UnionType, typing.Union}:
        return any(_fits(value, option) for option in typing.get_args(hint))
    if hint is float:
        return isinstance(value, int | float) and _is_number(value)
    if hint is int:
        return isinstance(value, int) and _is_number(value)
    if hint is str:
        return isinstance(value, str) and value.isprintable()
    return isinstance(value, hint)


def _is_number(value: float) -> bool:
    return not isinstance(value, bool) and abs(value) <= _MOST and math.isfinite(value)


def _demand(spec: ChannelSpec, name: str, fulfilled: bool) -> None:  # noqa: FBT001
    if not fulfilled:
        raise _invalid(spec, name, "is out of range")


def _invalid(spec: ChannelSpec, name: str, what: str) -> InvalidError:
    return InvalidError(
        f"channel {spec.name}: setting {name!r} {what}",
        code="invalid_channel",
        channel=spec.name,
        setting=name,
    )
