"""The application: routes, problems, the edge, and what they share. Nothing is opened here."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI

from services.api import cors, problems
from services.api.allowed import AllowedMethods
from services.api.backlog import Backlog
from services.api.deps import Api, ApiDeps
from services.api.edge import Edge
from services.api.pull_watch import PullWatch
from services.api.routes import (
    audit,
    backups,
    buckets,
    channels,
    copies,
    expiries,
    holds,
    instant,
    keys,
    links,
    listing,
    nodes,
    objects,
    origins,
    parked,
    parts,
    puts,
    regions,
    removals,
    replicas,
    rereviews,
    restores,
    review_content,
    reviewers,
    reviews,
    sessions,
    subscriptions,
    task_actions,
    tasks,
    tenants,
)
from services.api.work import Work

DESCRIPTION = """
Objects go in over plain HTTP and are safe once answered; storing, reviewing and deleting them are
**tasks** that run in the background and can be watched, cancelled and run again.

* Send `Authorization: Bearer blox_...`. Each route names the scope that it needs; `admin` has all.
* Every error is `application/problem+json` with a stable `code`; its `request_id` is in the logs.
* Another tenant's bucket, object, task or review is a 404.
* `POST`s honour `Idempotency-Key` for 24 hours; a `PUT` is idempotent by its content.
""".strip()

#: Order of the areas in the OpenAPI page.
_TAGS = [
    {"name": "buckets", "description": "Where objects live, and under which rules."},
    {"name": "objects", "description": "Put, get, list and delete content."},
    {"name": "uploads", "description": "Content in parts, that survives breaks and restarts."},
    {"name": "backups", "description": "Backups of buckets, restores, and copies that are lost."},
    {"name": "tasks", "description": "The work behind them: watch, cancel, run again."},
    {"name": "reviews", "description": "Content that waits for, passed or failed its review."},
    {"name": "notifications", "description": "Hear by signed webhooks what became of objects."},
    {"name": "admin", "description": "Tenants, keys, channels, processes. Scope `admin`."},
]


PREFIX = "/v1"
_ROUTERS = [
    area.router
    for area in (
        puts, objects, origins, links, listing, instant, sessions, parts, copies, expiries, holds,
        removals, buckets, replicas, backups, restores, tasks, task_actions, reviews, reviewers,
        review_content, rereviews, subscriptions, tenants, keys, channels, nodes, regions, audit,
        parked,
    )
]  # fmt: skip


def create_app(deps: ApiDeps) -> FastAPI:
    """Return the application. It starts and stops nothing of what it is given."""
    settings = deps.settings
    app = FastAPI(
        title="Cloudblox",
        version="1",
        description=DESCRIPTION,
        openapi_tags=_TAGS,
        docs_url="/docs" if settings.docs else None,
        openapi_url="/openapi.json" if settings.docs else None,
        redoc_url=None,
        redirect_slashes=False,
    )
    work = Work(deps.database, threads=settings.threads)
    app.state.api = Api(
        deps=deps,
        work=work,
        backlog=Backlog(limit=settings.max_backlog),
        pulls=PullWatch(work, most=settings.max_origin_waiters),
    )
    problems.install(app, allowed=AllowedMethods(PREFIX, _ROUTERS))
    v1 = APIRouter(prefix=PREFIX, responses=problems.OPENAPI)
    for router in _ROUTERS:
        v1.include_router(router)
    app.include_router(v1)
    # Within the edge, whose ids and refusals are for everybody.
    cors.install(app, settings.cors_origins)
    app.add_middleware(Edge, max_header_bytes=settings.max_header_bytes)
    return app
