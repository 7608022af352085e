"""Looks whether the answer to a challenge is right: reads the range outside of transactions."""

from __future__ import annotations

from pydantic import Field
from sqlalchemy.orm import Session

from services.api.content import ContentReader, Place
from services.api.deps import Caller
from services.api.doors import opener
from services.api.views import OrderBody
from shared.catalog.accounts import Principal
from shared.catalog.possession import (
    Challenge,
    check_answer,
    content_unknown,
    open_challenge,
    stored_copies,
)


class Proof(OrderBody):
    """The answer to a challenge."""

    token: str = Field(max_length=4096, description="As the challenge had it.")
    digest: str = Field(
        max_length=128,
        description="SHA-256 of the salt followed by the range's bytes, in hexadecimal.",
    )


async def check_proof(caller: Caller, proof: Proof, *, sha256: str, size: int) -> None:
    """Raise unless the caller has shown that the content is really there.

    ForbiddenError for a challenge that is none and for a wrong answer, NotFoundError
    (`content_unknown`) when there is nothing to compare with.
    """
    deps = caller.api.deps

    def look(session: Session, principal: Principal) -> tuple[Challenge, list[tuple[str, str]]]:
        tenant_id = principal.tenant_id
        challenge = open_challenge(
            deps.secrets, tenant_id, proof.token, sha256=sha256, size=size, now=deps.clock()
        )
        return challenge, stored_copies(session, tenant_id, sha256=sha256, size=size)

    challenge, copies = await caller.read("objects:write", look)
    if not copies:
        raise content_unknown()
    places = [Place(opener(caller.api, channel), key) for channel, key in copies]
    reader = ContentReader(places, start=challenge.offset, length=challenge.length)
    content = await caller.api.work.files(lambda: _read_all(reader))
    check_answer(challenge, content, proof.digest)


def _read_all(reader: ContentReader) -> bytes:
    try:
        return b"".join(iter(reader.read, b""))
    finally:
        reader.close()
