"""Reviewing a bucket's content again: start a run, look how far it is."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import JSONResponse
from pydantic import Field
from sqlalchemy.orm import Session

from services.api.auth import actor
from services.api.deps import CallerDep
from services.api.idempotency import Answer, TicketDep
from services.api.json_route import JsonRoute
from services.api.posts import write_once
from services.api.routes.puts import BucketName
from services.api.routes.tasks import visible_tenant
from services.api.views import DEFAULT_LIMIT, MAX_ID, Limit, Time, View
from shared.catalog.accounts import Principal
from shared.catalog.buckets import get_bucket
from shared.catalog.rereviews.runs import Progress, list_runs, show_run
from shared.catalog.rereviews.starting import start_run

router = APIRouter(tags=["reviews"], route_class=JsonRoute)

RunId = Annotated[int, Path(ge=1, le=MAX_ID, description="The run's id.")]


class RunView(View):
    """A run over a bucket."""

    id: int
    policy_version: str = Field(description="Of the policy under which it reviews.")
    state: str = Field(
        description="`running`; `planned`: all its reviews are made; `superseded`: the bucket's "
        "rules have changed since, and what it had not decided is not decided any more."
    )
    seen: int = Field(description="Versions that it has looked at.")
    planned: int = Field(description="Reviews that it has made.")
    task_id: int | None
    started_by: str = Field(description="A key's name, or `policy change`.")
    error_code: str | None
    created_at: Time
    ended_at: Time | None


class ProgressView(RunView):
    """A run, with how many of its reviews are in each state."""

    reviews: dict[str, int]
    is_done: bool = Field(description="Whether no review of it is to be made or under way.")


class RunList(View):
    """A bucket's runs, newest first."""

    items: list[RunView]


class StartedView(View):
    """A run that was started, or was under way."""

    id: int
    task_id: int | None


@router.post(
    "/buckets/{bucket}:re-review",
    summary="Review a bucket's content again",
    status_code=202,
    response_model=StartedView,
)
async def review_a_bucket_again(
    caller: CallerDep, bucket: BucketName, ticket: TicketDep
) -> JSONResponse:
    """Review what has no passing verdict under the bucket's present policy. Scope `reviews:write`.

    A change of the policy does this by itself, unless its `on_change` is `leave`. Content stays
    readable until it is found to be bad; then it is blocked, and its bytes are kept as long as the
    policy's `quarantine_seconds`. What reviewers cannot judge stays. A run under older rules ends.
    """

    def work(session: Session, principal: Principal) -> Answer:
        run = start_run(
            session,
            caller.api.deps.catalogue,
            principal.tenant_id,
            bucket,
            by=actor(principal),
        )
        return Answer(202, {"id": run.id, "task_id": run.task_id})

    return await write_once(caller, "reviews:write", ticket, work)


@router.get("/buckets/{bucket}/re-reviews", summary="List a bucket's runs of re-reviews")
async def get_runs(caller: CallerDep, bucket: BucketName, limit: Limit = DEFAULT_LIMIT) -> RunList:
    """Runs over a bucket, newest first. Scope `reviews:read`."""

    def work(session: Session, principal: Principal) -> RunList:
        found = get_bucket(session, principal.tenant_id, bucket)
        rows = list_runs(session, found.id, limit=limit)
        return RunList(items=[RunView.model_validate(row) for row in rows])

    return await caller.read("reviews:read", work)


@router.get("/re-reviews/{run_id}", summary="Show a run of re-reviews")
async def get_run(caller: CallerDep, run_id: RunId) -> ProgressView:
    """A run and how far its reviews are. Scope `reviews:read`."""

    def work(session: Session, principal: Principal) -> ProgressView:
        return _progress(show_run(session, visible_tenant(principal, None), run_id))

    return await caller.read("reviews:read", work)


def _progress(found: Progress) -> ProgressView:
    run = RunView.model_validate(found.run)
    is_done = run.state != "running" and not found.reviews.get("open")
    return ProgressView(**run.model_dump(), reviews=found.reviews, is_done=is_done)
