"""Keys of objects on a channel: which are allowed, and fresh ones that nobody has used before."""

from __future__ import annotations

from shared.core.ids import new_id
from shared.storage.errors import InvalidKey

#: Bytes of a whole key, as S3 allows.
MAX_KEY_BYTES = 1024
#: Bytes of one part between slashes, as file systems allow.
MAX_SEGMENT_BYTES = 255


def check_key(key: str) -> tuple[str, ...]:
    """Return the parts of a key, or raise InvalidKey.

    A key is relative and has no empty part, no ``.``, no ``..``, no control character and no lone
    surrogate, so that on a file channel it can name nothing outside the root and every S3 answer
    can hold it. The rule is the same for every kind.
    """
    try:
        raw = key.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidKey("a key must be valid Unicode", key=ascii(key)) from None
    if not raw or len(raw) > MAX_KEY_BYTES:
        raise InvalidKey(f"a key has 1 to {MAX_KEY_BYTES} bytes", key=key, key_bytes=len(raw))
    if any(byte < 0x20 or byte == 0x7F for byte in raw):
        raise InvalidKey("a key must not hold control characters", key=ascii(key))
    segments = tuple(key.split("/"))
    for segment in segments:
        if segment in {"", ".", ".."}:
            raise InvalidKey("a key must not have empty, '.' or '..' parts", key=key)
        if len(segment.encode("utf-8")) > MAX_SEGMENT_BYTES:
            raise InvalidKey(f"a part of a key has at most {MAX_SEGMENT_BYTES} bytes", key=key)
    return segments


def fresh_key(prefix: str = "") -> str:
    """Return a key that was never used before, spread over 256 folders below `prefix`."""
    name = new_id()
    key = f"{prefix.rstrip('/')}/{name[:2]}/{name}" if prefix else f"{name[:2]}/{name}"
    check_key(key)
    return key
