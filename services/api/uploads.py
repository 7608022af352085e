"""What the headers of a PUT say about the body that follows. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from services.api.lifetimes import parse_lifetime
from shared.catalog.lifecycle import UNTIMED, Lifetime
from shared.catalog.limits import (
    DEFAULT_CONTENT_TYPE,
    check_content_type,
    check_metadata,
    check_sha256,
)
from shared.core.errors import InvalidError

META_PREFIX = "x-blox-meta-"
#: Said about the content and given back with it ...
KEPT_HEADERS = ("cache-control", "content-disposition", "content-encoding", "content-language")
#: ... and kept beside the client's own metadata, under names that are taken from clients.
KEPT_PREFIX = "http."
_MAX_DIGITS = 19
_MD5_BYTES = 16


@dataclass(frozen=True, slots=True)
class Declared:
    """What a client promises: None where it says nothing. Digests are small hexadecimal."""

    size: int | None = None
    sha256: str | None = None
    md5: str | None = None
    content_type: str = DEFAULT_CONTENT_TYPE
    metadata: Mapping[str, str] = field(default_factory=dict)
    lifetime: Lifetime = UNTIMED


def parse_declared(
    raw_headers: Iterable[tuple[bytes, bytes]], *, max_metadata_bytes: int
) -> Declared:
    """Read the headers of a PUT. Raises InvalidError for what cannot be meant."""
    headers: dict[str, str] = {}
    metadata: dict[str, str] = {}
    for raw_name, raw_value in raw_headers:
        name = raw_name.decode("ascii", "replace")
        if name.startswith(META_PREFIX):
            _add_metadata(metadata, name, raw_value)
        else:
            headers[name] = raw_value.decode("latin-1").strip()
    if "content-range" in headers:
        raise InvalidError("a PUT stores whole objects: no Content-Range", code="content_range")
    for name in KEPT_HEADERS:
        if headers.get(name):
            metadata[KEPT_PREFIX + name] = _text(name, headers[name].encode("latin-1"))
    sha256 = headers.get("x-blox-sha256")
    return Declared(
        size=_size(headers),
        sha256=None if sha256 is None else check_sha256(sha256),
        md5=_md5(headers.get("content-md5")),
        content_type=check_content_type(headers.get("content-type")),
        metadata=checked_metadata(metadata, max_bytes=max_metadata_bytes),
        lifetime=parse_lifetime(headers),
    )


def client_metadata(
    metadata: Mapping[str, str], *, headers: Mapping[str, str] | None = None, max_bytes: int
) -> dict[str, str]:
    """Return metadata that a client has named itself; what headers stand for is not its to set.

    `headers` are those of an upload whose own request has no body that they would be about.
    """
    for name in metadata:
        _refuse_taken(name, name)
    kept = {name.lower(): value for name, value in (headers or {}).items()}
    for name in kept:
        if name not in KEPT_HEADERS:
            raise InvalidError(
                f"{name[:80]} is not kept: {', '.join(KEPT_HEADERS)} are", code="metadata_invalid"
            )
    kept = {KEPT_PREFIX + name: value for name, value in kept.items()}
    return checked_metadata({**metadata, **kept}, max_bytes=max_bytes)


def checked_metadata(metadata: Mapping[str, str], *, max_bytes: int) -> dict[str, str]:
    """Return metadata as it is kept. Raises InvalidError for names, values or too much of them."""
    checked = check_metadata(metadata)
    size = sum(len(name) + len(value.encode()) for name, value in checked.items())
    if size > max_bytes:
        raise InvalidError(
            f"metadata has {size} bytes, at most {max_bytes} are kept", code="metadata_invalid"
        )
    return checked


def metadata_headers(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that give metadata back, as latin-1 text that stands for their UTF-8."""
    headers = {}
    for name, value in metadata.items():
        kept = name.removeprefix(KEPT_PREFIX)
        header = kept if kept != name and kept in KEPT_HEADERS else META_PREFIX + name
        headers[header] = value.encode().decode("latin-1")
    return headers


def _add_metadata(metadata: dict[str, str], header: str, raw_value: bytes) -> None:
    name = header.removeprefix(META_PREFIX)
    _refuse_taken(name, header)
    value = _text(header, raw_value)
    # Repeated fields are one list, as everywhere in HTTP.
    metadata[name] = f"{metadata[name]}, {value}" if name in metadata else value


def _refuse_taken(name: str, shown: str) -> None:
    if name.lower().startswith(KEPT_PREFIX):
        raise InvalidError(f"{shown[:80]}: this name is taken", code="metadata_invalid")


def _text(header: str, raw_value: bytes) -> str:
    try:
        return raw_value.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise InvalidError(f"{header[:80]} is not UTF-8", code="metadata_invalid") from error


def _size(headers: Mapping[str, str]) -> int | None:
    """Return the declared length; X-Blox-Size declares it for a body sent in chunks."""
    sizes = set()
    for name in ("content-length", "x-blox-size"):
        text = headers.get(name)
        if text is None or (name == "content-length" and "transfer-encoding" in headers):
            continue
        if not text.isascii() or not text.isdigit() or len(text) > _MAX_DIGITS:
            raise InvalidError(f"{name} is not a length in bytes", code="length_invalid")
        sizes.add(int(text))
    if len(sizes) > 1:
        raise InvalidError("Content-Length and X-Blox-Size differ", code="size_mismatch")
    return sizes.pop() if sizes else None


def _md5(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        digest = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidError("Content-MD5 is not base64", code="content_md5_invalid") from error
    if len(digest) != _MD5_BYTES:
        raise InvalidError("Content-MD5 does not hold 16 bytes", code="content_md5_invalid")
    return digest.hex()
