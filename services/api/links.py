"""A request that comes with a link instead of a key: reading it, and what it binds.

A link stands in the query: who made it, until when it is good, what it is for, its signature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated
from urllib.parse import quote, unquote_to_bytes, urlencode

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials
from sqlalchemy.orm import Session

from services.api import auth
from services.api.deps import Api, Caller, get_api
from services.api.intake import Intake
from shared.catalog.accounts import Principal
from shared.catalog.limits import check_content_type, check_sha256
from shared.catalog.links import LinkClaims, open_link
from shared.core.errors import ForbiddenError, InvalidError, TooLargeError

SIGNATURE = "blox-signature"
_KEY, _EXPIRES, _METHOD = "blox-key", "blox-expires", "blox-method"
_TYPE, _MAX_BYTES, _SHA256 = "blox-type", "blox-max-bytes", "blox-sha256"
_MOST_DIGITS = 18
_SIGNATURE_DIGITS = 64


@dataclass(frozen=True, slots=True)
class LinkCaller(Caller):
    """The sender of a request with a link. It acts for the key that made the link."""

    claims: LinkClaims
    signature: str = field(repr=False)
    method: str
    now: Callable[[], float]

    def enter(self, session: Session, scope: str) -> Principal:
        """See Caller.enter. Raises ForbiddenError (`link_method`) as well."""
        principal = open_link(
            session, self.api.deps.secrets, self.claims, self.signature, now=self.now()
        )
        if self.method != self.claims.method:
            raise ForbiddenError(
                f"the link is for {self.claims.method}, this is {self.method}", code="link_method"
            )
        principal.require(scope)
        return principal

    def bound(self, intake: Intake) -> Intake:
        """See Caller.bound: type, size and content as the link has them."""
        declared, claims = intake.declared, self.claims
        if claims.content_type not in (None, declared.content_type):
            raise ForbiddenError(
                f"the link is for content of the type {claims.content_type}", code="link_type"
            )
        if claims.sha256 is not None and declared.sha256 not in (None, claims.sha256):
            raise InvalidError(
                "the link is for content with another SHA-256",
                code="sha256_mismatch",
                expected=claims.sha256,
                actual=declared.sha256,
            )
        most = intake.max_bytes
        if claims.max_bytes is not None:
            most = min(most, claims.max_bytes)
            if declared.size is not None and declared.size > most:
                raise TooLargeError(
                    f"the link is for at most {most} bytes", max_bytes=most, size=declared.size
                )
        sha256 = claims.sha256 or declared.sha256
        return replace(intake, declared=replace(declared, sha256=sha256), max_bytes=most)


def _link_caller(request: Request, api: Api) -> LinkCaller:
    # Whether it is good is seen in the transaction, as with keys.
    query = request.query_params
    path = unquote_to_bytes(request.scope["raw_path"])
    return LinkCaller(
        api,
        "",
        claims=_claims(query, path),
        signature=query.get(SIGNATURE, "")[: _SIGNATURE_DIGITS + 1],
        method=request.method,
        now=api.deps.clock,
    )


async def get_caller_or_link(
    request: Request,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Security(auth.bearer)],
) -> Caller:
    """Return the sender of a request that may come with a link; a key, if there is one, counts."""
    if credentials is None and SIGNATURE in request.query_params:
        return _link_caller(request, get_api(request))
    return Caller(get_api(request), auth.read_secret(credentials))


LinkOrKeyDep = Annotated[Caller, Depends(get_caller_or_link)]


def link_query(claims: LinkClaims, signature: str) -> str:
    """Return the query that makes an address a link."""
    fields = {
        _KEY: str(claims.key_id),
        _EXPIRES: str(claims.expires_at),
        _METHOD: claims.method,
        _TYPE: claims.content_type,
        _MAX_BYTES: None if claims.max_bytes is None else str(claims.max_bytes),
        _SHA256: claims.sha256,
        SIGNATURE: signature,
    }
    return urlencode({name: value for name, value in fields.items() if value is not None})


def quoted_path(path: bytes) -> str:
    """Return a decoded path as it stands in an address."""
    return quote(path, safe="/")


def _claims(query: Mapping[str, str], path: bytes) -> LinkClaims:
    try:
        content_type, sha256 = query.get(_TYPE), query.get(_SHA256)
        return LinkClaims(
            method=query.get(_METHOD, ""),
            path=path,
            key_id=_number(query[_KEY]),
            expires_at=_number(query[_EXPIRES]),
            content_type=None if content_type is None else check_content_type(content_type),
            max_bytes=None if _MAX_BYTES not in query else _number(query[_MAX_BYTES]),
            sha256=None if sha256 is None else check_sha256(sha256),
        )
    except (KeyError, ValueError, InvalidError):
        raise ForbiddenError("the link is not whole", code="link_signature") from None


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > _MOST_DIGITS:
        raise ValueError(text)
    return int(text)
