"""Every error of this service as an RFC 9457 document, and the HTTP status of each class.

A caller's mistake is answered with its facts; a fault of ours only with a word and the id of the
request, under which the log has the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from services.api.allowed import AllowedMethods
from shared.core.errors import (
    BacklogError,
    BloxError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    PreconditionError,
    RequestError,
    SwitchedOffError,
    TooLargeError,
    TransientError,
    UnauthorizedError,
)
from shared.storage.errors import ChannelFull

log = structlog.get_logger()

MEDIA_TYPE = "application/problem+json"
#: Seconds after which a client should ask again when a server behind us does not answer.
RETRY_AFTER_SECONDS = 2
#: The first class that fits decides.
_STATUS: tuple[tuple[type[BloxError], int], ...] = (
    (InvalidError, 400),
    (UnauthorizedError, 401),
    (ForbiddenError, 403),
    (NotFoundError, 404),
    (ConflictError, 409),
    (PreconditionError, 412),
    (TooLargeError, 413),
    (BacklogError, 429),
    (SwitchedOffError, 501),
    (RequestError, 400),
    (ChannelFull, 507),
    (TransientError, 503),
)
#: Codes whose status is not that of their class.
_STATUS_OF_CODE = {
    "request_timeout": 408,
    "range_not_satisfiable": 416,
    "headers_too_large": 431,
    "uri_too_long": 414,
    "not_implemented": 501,
}
_CODE_OF_STATUS = {
    400: "bad_request",
    404: "no_such_route",
    405: "method_not_allowed",
    413: "too_large",
    415: "unsupported_media_type",
}


#: What OpenAPI says of every route.
OPENAPI: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "A problem document (RFC 9457).",
        "content": {
            MEDIA_TYPE: {
                "schema": {
                    "type": "object",
                    "required": ["type", "title", "status", "code", "detail"],
                    "properties": {
                        "type": {"type": "string", "format": "uri"},
                        "title": {"type": "string"},
                        "status": {"type": "integer"},
                        "code": {"type": "string", "description": "Stable; compare this one."},
                        "detail": {"type": "string"},
                        "request_id": {"type": "string"},
                    },
                }
            }
        },
    }
}


class Problem(Response):
    """One problem document."""

    media_type = MEDIA_TYPE

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        request_id: str = "",
        headers: Mapping[str, str] | None = None,
        **facts: object,
    ) -> None:
        document = {
            "type": f"urn:cloudblox:problem:{code}",
            "title": HTTPStatus(status).phrase,
            "status": status,
            "code": code,
            "detail": detail,
            **({"request_id": request_id} if request_id else {}),
            **{name: _plain(value) for name, value in facts.items() if name not in _RESERVED},
        }
        super().__init__(
            json.dumps(document, ensure_ascii=False).encode("utf-8", "replace"),
            status_code=status,
            headers=dict(headers or {}),
        )


_RESERVED = frozenset({"type", "title", "status", "code", "detail", "request_id"})


def status_of(error: BloxError) -> int:
    """Return the HTTP status that an error means."""
    by_code = _STATUS_OF_CODE.get(error.code)
    if by_code is not None:
        return by_code
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def from_error(error: BloxError, *, request_id: str = "") -> Problem:
    """Return the answer to an error raised on purpose; faults of ours are logged with all facts."""
    status = status_of(error)
    headers: dict[str, str] = {}
    if status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = 'Bearer realm="cloudblox"'
    patience: float | None = getattr(error, "retry_after_seconds", None)
    if patience is not None:
        headers["retry-after"] = str(max(1, round(patience)))
    elif status in {503, 507}:
        headers["retry-after"] = str(RETRY_AFTER_SECONDS)
    if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        headers["content-range"] = f"bytes */{error.facts.get('size', '*')}"
    if status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return Problem(
            status, error.code, str(error), request_id=request_id, headers=headers, **error.facts
        )
    log.warning("request_refused", code=error.code, detail=str(error), **_loggable(error.facts))
    return Problem(
        status, error.code, _public_detail(error, status), request_id=request_id, headers=headers
    )


def internal(request_id: str) -> Problem:
    """Return the answer to a surprise."""
    return Problem(500, "internal", "Something went wrong on our side.", request_id=request_id)


def stopping(request_id: str) -> Problem:
    """Return the answer to a request that the end of the process cuts short."""
    return Problem(
        503,
        "shutting_down",
        "This process ends before the request could. Repeat it: another one will answer.",
        request_id=request_id,
        headers={"retry-after": str(RETRY_AFTER_SECONDS)},
    )


def install(app: FastAPI, *, allowed: AllowedMethods | None = None) -> None:
    """Answer all expected errors of an application with problem documents.

    `allowed` completes the Allow header of a 405, of which the framework knows one route only.
    Surprises pass through; the edge middleware answers them.
    """
    app.state.allowed_methods = allowed
    app.add_exception_handler(BloxError, _blox_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)


def request_id_of(request: Request) -> str:
    """Return the id that the edge gave to this request."""
    return str(request.scope.get("blox.request_id", ""))


async def _blox_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, BloxError):
        raise error
    return from_error(error, request_id=request_id_of(request))


async def _http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    status, headers = error.status_code, dict(error.headers or {})
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed: AllowedMethods | None = request.app.state.allowed_methods
        if allowed is not None and (methods := allowed.at(request.url.path)):
            headers["Allow"] = methods
        detail = f"{request.method} is not possible here"
    elif status == HTTPStatus.NOT_FOUND:
        detail = "There is nothing at this address; /docs lists what there is."
    else:
        detail = str(error.detail)
    return Problem(
        status,
        _CODE_OF_STATUS.get(status, "http_error"),
        detail,
        request_id=request_id_of(request),
        headers=headers,
    )


async def _validation_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    faults = error.errors()
    request_id = request_id_of(request)
    if any(fault["type"] == "json_invalid" for fault in faults):
        reason = str(faults[0].get("ctx", {}).get("error", ""))
        return Problem(
            400, "json_invalid", f"The body is not JSON: {reason}", request_id=request_id
        )
    errors = [
        {"where": ".".join(str(part) for part in fault["loc"]), "what": str(fault["msg"])}
        for fault in faults[:20]
    ]
    detail = "; ".join(f"{fault['where']}: {fault['what']}" for fault in errors[:3])
    return Problem(422, "validation", detail, request_id=request_id, errors=errors)


def _public_detail(error: BloxError, status: int) -> str:
    if status == HTTPStatus.INSUFFICIENT_STORAGE:
        return "There is no room to take in these bytes now."
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        return f"Not possible at the moment: {type(error).__doc__ or ''}".splitlines()[0].strip()
    if status == HTTPStatus.NOT_IMPLEMENTED:
        return str(error)
    return "Something went wrong on our side."


def _plain(value: object) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return str(value)


def _loggable(facts: Mapping[str, object]) -> dict[str, object]:
    return {f"fact_{name}": value for name, value in facts.items()}
