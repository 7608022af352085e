"""What a caller may send: keys, content types, metadata. Every refusal says which rule and why.

Pure; the API asks before it reads a body, and the commit asks again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from shared.catalog.models.base import MAX_KEY_BYTES
from shared.core.errors import InvalidError

#: Bytes of user metadata, names and values together (S3's own limit).
MAX_METADATA_BYTES = 2048
MAX_CONTENT_TYPE = 255
#: Characters of the longest name that any table keeps.
MAX_NAME = 255
#: Tries that one upload has per candidate channel, counted in its checkpoint: with the back-off of
#: the storage kinds a lone channel may be away for about 45 minutes.
TRIES_PER_CHANNEL = 12

DEFAULT_CONTENT_TYPE = "application/octet-stream"

_BUCKET_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{1,61}[a-z0-9])\Z")
_TENANT_ID = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,62}[a-z0-9])?\Z")
_CHANNEL_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,62}[a-z0-9])?\Z")
_METADATA_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


def check_key(key: str, *, max_bytes: int = MAX_KEY_BYTES) -> str:
    """Return an object's key; InvalidError (`key_invalid`) when it cannot be one.

    One to `max_bytes` (1,024) bytes of UTF-8, no NUL, no segment `.` or `..`: such keys cannot be
    fetched by URL, because clients and proxies fold them away.
    """
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise InvalidError("the key is not valid Unicode", code="key_invalid") from error
    if not 1 <= size <= max_bytes:
        raise InvalidError(
            f"a key has 1 to {max_bytes} bytes of UTF-8, this one has {size}",
            code="key_invalid",
            key_bytes=size,
        )
    if "\0" in key:
        raise InvalidError("a key holds no NUL", code="key_invalid")
    if any(part in {".", ".."} for part in key.split("/")):
        raise InvalidError("a key has no segment '.' or '..'", code="key_invalid")
    return key


def is_name(text: str) -> bool:
    """Tell whether any column of names could hold this text.

    Such a column is ASCII, and MySQL refuses to compare it with anything else: what is no name is
    not there, without asking.
    """
    return text.isascii() and text.isprintable() and len(text) <= MAX_NAME


def check_bucket_name(name: str) -> str:
    """Return a bucket's name; InvalidError (`bucket_name_invalid`) when it is not one."""
    if not _BUCKET_NAME.match(name) or ".." in name:
        raise InvalidError(
            "a bucket's name has 3 to 63 small letters, digits, dots and hyphens, "
            "and begins and ends with a letter or digit",
            code="bucket_name_invalid",
        )
    return name


def check_tenant_id(tenant_id: str) -> str:
    """Return a tenant's id; InvalidError (`tenant_invalid`) when it is not one."""
    if not _TENANT_ID.match(tenant_id):
        raise InvalidError(
            "a tenant's id has 1 to 64 small letters, digits, hyphens and underscores",
            code="tenant_invalid",
        )
    return tenant_id


def check_channel_name(name: str) -> str:
    """Return a channel's name; InvalidError (`channel_invalid`) when it is not one."""
    if not _CHANNEL_NAME.match(name):
        raise InvalidError(
            "a channel's name has 1 to 64 small letters, digits, hyphens and underscores",
            code="channel_invalid",
        )
    return name


def check_content_type(content_type: str | None) -> str:
    """Return a content type, `application/octet-stream` when none was given."""
    if not content_type:
        return DEFAULT_CONTENT_TYPE
    if len(content_type) > MAX_CONTENT_TYPE or not _is_header_text(content_type):
        raise InvalidError(
            f"a content type is printable ASCII of at most {MAX_CONTENT_TYPE} characters",
            code="content_type_invalid",
        )
    return content_type


def check_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return user metadata with small-letter names; InvalidError (`metadata_invalid`)."""
    checked: dict[str, str] = {}
    for name, value in metadata.items():
        small = name.lower()
        if not _METADATA_NAME.match(small) or not value.isprintable():
            raise InvalidError(
                f"metadata {name[:64]!r}: names are letters, digits, '.', '_' and '-', "
                "values are printable text",
                code="metadata_invalid",
            )
        checked[small] = value
    size = sum(len(name) + len(value.encode()) for name, value in checked.items())
    if size > MAX_METADATA_BYTES:
        raise InvalidError(
            f"metadata has {size} bytes, at most {MAX_METADATA_BYTES} are kept",
            code="metadata_invalid",
        )
    return checked


def check_sha256(digest: str) -> str:
    """Return a SHA-256 in small hexadecimal letters; InvalidError (`sha256_invalid`)."""
    small = digest.strip().lower()
    if not _SHA256.match(small):
        raise InvalidError("a SHA-256 is 64 hexadecimal digits", code="sha256_invalid")
    return small


def upload_attempts(channel_count: int) -> int:
    """Return the attempts of an upload task: every try of every channel, and some slack."""
    return TRIES_PER_CHANNEL * channel_count + 4


def _is_header_text(text: str) -> bool:
    return text.isascii() and text.isprintable()
