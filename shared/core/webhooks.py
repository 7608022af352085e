"""Standard Webhooks signatures: HMAC-SHA256 over id, timestamp and body. Pure.

A message carries `webhook-id`, `webhook-timestamp` (seconds) and `webhook-signature` (one or more
`v1,<base64>`); several secrets are in use while they are changed, one after the other.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets as random_source
from collections.abc import Iterable, Mapping, Sequence

from shared.core.errors import InvalidError, UnauthorizedError

SECRET_PREFIX = "whsec_"  # noqa: S105 - what every secret begins with
ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER = (
    "webhook-id",
    "webhook-timestamp",
    "webhook-signature",
)
#: Seconds that a message's time may be away from ours.
TOLERANCE_SECONDS = 300.0
#: Secrets of one receiver that may be in use together.
MAX_SECRETS = 5
#: Characters of an id; rows keep it.
MAX_ID = 128
#: Bytes of key: fewer are guessed, more than a block of the hash add nothing.
_KEY_BYTES = range(24, 65)
#: Signatures of one message that are looked at.
_MOST_SIGNATURES = 16


def make_secret() -> str:
    """Return a new secret."""
    return SECRET_PREFIX + base64.b64encode(random_source.token_bytes(32)).decode()


def check_secret(secret: str) -> str:
    """Return a secret that can be used. Raises InvalidError (`webhook_secret_invalid`)."""
    _key(secret)
    return secret


def sign(secrets: Sequence[str], *, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the three headers of a message, with a signature by each secret."""
    signatures = [f"v1,{_mac(_key(one), message_id, str(timestamp), body)}" for one in secrets]
    return {
        ID_HEADER: message_id,
        TIMESTAMP_HEADER: str(timestamp),
        SIGNATURE_HEADER: " ".join(signatures),
    }


def verify(secrets: Iterable[str], headers: Mapping[str, str], body: bytes, *, now: float) -> str:
    """Return the id of a message that was signed with one of the secrets, lately.

    `headers` have small-letter names; `now` is our clock in seconds since the epoch. Raises
    UnauthorizedError; what was wrong with the signature is not told.
    """
    message_id = headers.get(ID_HEADER, "")
    stamp = headers.get(TIMESTAMP_HEADER, "")
    if not (0 < len(message_id) <= MAX_ID and message_id.isascii() and message_id.isprintable()):
        raise UnauthorizedError(
            f"a message has a {ID_HEADER} of 1 to {MAX_ID} ASCII characters",
            code="webhook_id_invalid",
        )
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) <= 12):
        raise UnauthorizedError(
            f"a message has a {TIMESTAMP_HEADER} in seconds", code="webhook_timestamp_invalid"
        )
    given = headers.get(SIGNATURE_HEADER, "").split()[:_MOST_SIGNATURES]
    candidates = [
        value
        for version, _, value in (one.partition(",") for one in given)
        if version == "v1" and value.isascii()
    ]
    is_signed = False
    for secret in secrets:
        wanted = _mac(_key(secret), message_id, stamp, body)
        for value in candidates:
            # All are compared: how long it takes tells nothing of which one fits.
            is_signed |= hmac.compare_digest(wanted, value)
    if not is_signed:
        raise UnauthorizedError("the signature does not fit", code="webhook_signature_invalid")
    if abs(now - int(stamp)) > TOLERANCE_SECONDS:
        raise UnauthorizedError(
            f"the message's time is more than {TOLERANCE_SECONDS:.0f} seconds from ours",
            code="webhook_timestamp_old",
        )
    return message_id


def _mac(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    signed = f"{message_id}.{timestamp}.".encode() + body
    return base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(SECRET_PREFIX) or len(key) not in _KEY_BYTES:
        raise InvalidError(
            f"a webhook secret is {SECRET_PREFIX} and the base64 of 24 to 64 random bytes",
            code="webhook_secret_invalid",
        )
    return key
