"""Pages of other origins that may call the API from a browser; nobody, unless a setting names them.

There are no cookies: a page sends its key in `Authorization`, as every client does.
"""

from __future__ import annotations

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

#: Every method of every route.
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE")
#: What scripts may read of an answer, beside the few headers that they always may.
EXPOSED = (
    "Accept-Ranges",
    "Content-Disposition",
    "Content-Length",
    "Content-Range",
    "ETag",
    "Location",
    "Retry-After",
    "X-Blox-Expires-At",
    "X-Blox-Sha256",
    "X-Blox-State",
    "X-Blox-Task",
    "X-Blox-Version",
    "X-Request-Id",
    # The rest, such as X-Blox-Meta-*: where no cookies are sent along a browser takes it so.
    "*",
)
#: Seconds for which a browser need not ask again what it may do.
MAX_AGE_SECONDS = 600


def install(app: FastAPI, origins: str) -> None:
    """Answer preflights and mark answers for these origins: with commas between them, or `*`."""
    allowed = [origin.strip() for origin in origins.split(",") if origin.strip()]
    if not allowed:
        return
    app.add_middleware(
        CORSMiddleware,
        allow_origins=allowed,
        allow_methods=METHODS,
        # Any: x-blox-meta-* has no end, and what a header may do is judged where it is read.
        allow_headers=["*"],
        expose_headers=EXPOSED,
        max_age=MAX_AGE_SECONDS,
    )
