"""The object's key out of the raw address. Pure.

The server's decoded path has lost what was not UTF-8; a key must be the very bytes that were sent.
"""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

from shared.catalog.limits import check_key
from shared.core.errors import InvalidError


def object_key(raw_path: bytes, matched: str, *, max_bytes: int, suffix: str = "") -> str:
    """Return the key that ends `raw_path`; `matched` is the server's decoded idea of it.

    An action that the address names behind the key is the `suffix`. Raises InvalidError
    (`key_invalid`) with the rule that it breaks.
    """
    decoded = unquote_to_bytes(raw_path)
    if suffix:
        decoded = decoded.removesuffix(suffix.encode())
    text = decoded.decode("utf-8", "replace")
    # What stands before the key is names; broken bytes in them come back as other bytes.
    prefix = text[: len(text) - len(matched)].encode()
    if not decoded.startswith(prefix):
        raise InvalidError("the address is not UTF-8", code="key_invalid")
    try:
        return check_key(decoded[len(prefix) :].decode("utf-8"), max_bytes=max_bytes)
    except UnicodeDecodeError as error:
        raise InvalidError("a key is UTF-8", code="key_invalid") from error
