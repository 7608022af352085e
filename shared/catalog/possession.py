"""Whether a client really has content: the salted digest of a random range of it.

A challenge is a sealed text that the client brings back; nothing is stored. A hash alone, which may
have been seen elsewhere, answers none.
"""

from __future__ import annotations

import hashlib
import hmac
import random
import secrets
from dataclasses import dataclass
from enum import StrEnum

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import Blob, BlobState, Location
from shared.catalog.places import is_good
from shared.catalog.secret_box import SecretBox
from shared.core.errors import ForbiddenError, NotFoundError, PermanentError


class InstantUploads(StrEnum):
    """What a bucket wants of an upload that sends only a hash."""

    OFF = "off"
    HASH = "hash"
    CHALLENGE = "challenge"


#: A client reads and hashes the range within this.
CHALLENGE_SECONDS = 300
#: Bytes of the range, or the whole of smaller content.
RANGE_BYTES = 1024 * 1024
_PURPOSE = "possession-1"
_SALT_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """What is to be hashed: the salt, then the bytes of the range. `expires_at`: since 1970."""

    salt: bytes
    offset: int
    length: int
    expires_at: int
    token: str


def make_challenge(
    box: SecretBox, tenant_id: str, *, sha256: str, size: int, now: float
) -> Challenge:
    """Return a new challenge for a content, whether it is known here or not."""
    length = min(size, RANGE_BYTES)
    salt, offset = secrets.token_bytes(_SALT_BYTES), random.SystemRandom().randint(0, size - length)
    expires_at = int(now) + CHALLENGE_SECONDS
    token = box.seal(
        {
            "purpose": _PURPOSE,
            "content": _content(tenant_id, sha256, size),
            "salt": salt.hex(),
            "offset": str(offset),
            "length": str(length),
            "expires_at": str(expires_at),
        }
    )
    return Challenge(salt=salt, offset=offset, length=length, expires_at=expires_at, token=token)


def open_challenge(
    box: SecretBox, tenant_id: str, token: str, *, sha256: str, size: int, now: float
) -> Challenge:
    """Return the challenge that a token is of.

    Raises ForbiddenError: `challenge_unknown` when it was not made here for this tenant and this
    content, `challenge_expired`.
    """
    try:
        said = box.open(token)
    except (PermanentError, ValueError):
        said = {}
    content = _content(tenant_id, sha256, size)
    if (said.get("purpose"), said.get("content")) != (_PURPOSE, content):
        raise ForbiddenError(
            "the challenge was not made for this content", code="challenge_unknown"
        )
    if now >= int(said["expires_at"]):
        raise ForbiddenError("the challenge has expired: ask for another", code="challenge_expired")
    return Challenge(
        salt=bytes.fromhex(said["salt"]),
        offset=int(said["offset"]),
        length=int(said["length"]),
        expires_at=int(said["expires_at"]),
        token=token,
    )


def check_answer(challenge: Challenge, content: bytes, answer: str) -> None:
    """Raise ForbiddenError (`possession_unproven`) unless the answer is that of these bytes."""
    expected = hashlib.sha256(challenge.salt + content).hexdigest()
    if not hmac.compare_digest(expected.encode(), answer.lower().encode("utf-8", "replace")):
        raise ForbiddenError(
            "the answer is not the digest of the challenge's range", code="possession_unproven"
        )


def stored_copies(
    session: Session, tenant_id: str, *, sha256: str, size: int
) -> list[tuple[str, str]]:
    """Return channel and key of each copy of a content that the tenant has. Nothing is locked."""
    rows = session.execute(
        sa.select(Location.channel, Location.key)
        .join(Blob, Blob.id == Location.blob_id)
        .where(
            Blob.tenant_id == tenant_id,
            Blob.sha256 == sha256,
            Blob.size_bytes == size,
            Blob.state.in_((BlobState.LIVE, BlobState.CONDEMNED)),
            is_good(),
        )
        .order_by(Location.id)
    )
    return [(row.channel, row.key) for row in rows]


def demand_possession(mode: str, *, is_proven: bool) -> None:
    """Raise ForbiddenError unless a bucket of this mode takes content by its hash."""
    if mode == InstantUploads.OFF:
        raise ForbiddenError(
            "this bucket takes no content by its hash: send its bytes", code="instant_upload_off"
        )
    if mode == InstantUploads.CHALLENGE and not is_proven:
        raise ForbiddenError(
            "this bucket wants a proof that the content is really there: answer a challenge",
            code="possession_unproven",
        )


def content_unknown() -> NotFoundError:
    """Return what is said of content that can only be stored from its bytes."""
    return NotFoundError("the content is not stored here: send its bytes", code="content_unknown")


def _content(tenant_id: str, sha256: str, size: int) -> str:
    return f"{tenant_id}:{sha256}:{size}"
