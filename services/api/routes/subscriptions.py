"""Event notifications: who hears of what, and what was sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Body, Path, Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session

from services.api.auth import actor
from services.api.deps import CallerDep
from services.api.idempotency import Answer, TicketDep
from services.api.json_route import JsonRoute
from services.api.paging import PagingDep
from services.api.posts import act_once, write_once
from services.api.vetting import vet_address
from services.api.views import MAX_ID, PageView, Time, View
from shared.catalog.accounts import Principal
from shared.catalog.buckets import get_bucket
from shared.catalog.models import Bucket, Delivery, DeliveryState, Notification, Subscription
from shared.catalog.notifying.deliveries import shown_data
from shared.catalog.notifying.emitting import QUEUE
from shared.catalog.notifying.subscriptions import (
    CHOICES,
    Replayed,
    add_subscription,
    delete_subscription,
    drop_old_secrets,
    enable,
    find_subscription,
    list_subscriptions,
    need_receiver,
    replay,
    rotate_secret,
    send_anew,
    send_test,
)
from shared.catalog.notifying.waking import wake_deliveries
from shared.core.errors import ConflictError, NotFoundError

router = APIRouter(tags=["notifications"], route_class=JsonRoute)

READ, WRITE = "notifications:read", "notifications:write"

SubscriptionId = Annotated[int, Path(ge=1, le=MAX_ID, description="The subscription's id.")]
DeliveryId = Annotated[int, Path(ge=1, le=MAX_ID, description="The delivery's id.")]


class SubscriptionOrder(BaseModel):
    """Who hears of what."""

    model_config = ConfigDict(extra="forbid")

    url: str = Field(max_length=2048, description="Where events go, by a signed POST.")
    events: list[str] = Field(min_length=1, description=f"Some of {', '.join(CHOICES)}.")
    bucket: str | None = Field(None, max_length=63, description="Null: all buckets.")
    prefix: str = Field("", max_length=1024, description="Only keys that begin with it.")


class SubscriptionView(View):
    """A subscription, without its secrets."""

    id: int
    url: str
    events: list[str]
    bucket: str | None = Field(description="Null for all, or where the bucket is gone.")
    is_bucket_gone: bool = Field(
        description="Its bucket was deleted: it hears nothing new, nor of one of the same name."
    )
    prefix: str
    is_enabled: bool
    disabled_code: str | None = Field(description="`by_hand`, or `gone`: the receiver said 410.")
    failures: int = Field(description="Failures in a row.")
    failing_until: Time | None = Field(description="Until then nothing is sent.")
    created_at: Time
    updated_at: Time


class NewSubscriptionView(SubscriptionView):
    """A subscription, with the secret that signs its events."""

    secret: str = Field(description="Shown once.")


class SubscriptionList(View):
    """A tenant's subscriptions, by id."""

    items: list[SubscriptionView]


class SubscriptionChange(BaseModel):
    """Whether it hears."""

    model_config = ConfigDict(extra="forbid")

    is_enabled: bool


class SecretView(BaseModel):
    """A secret that was just made."""

    secret: str = Field(
        description="Shown once. The older ones sign as well until they are dropped."
    )


class DeliveryView(View):
    """One event on its way to one address."""

    id: int
    subscription_id: int
    notification_id: int
    type: str
    data: dict[str, Any]
    state: str = Field(description="`pending`, `delivered` or `failed`.")
    tries: int
    status: int | None = Field(description="Of the last answer.")
    error_code: str | None
    task_id: int | None
    created_at: Time
    ended_at: Time | None


class ReplayOrder(BaseModel):
    """From where on events are sent again."""

    model_config = ConfigDict(extra="forbid")

    after: int = Field(0, ge=0, le=MAX_ID, description="Only notifications with larger ids.")


class ReplayView(BaseModel):
    """How many events are on their way again."""

    begun: int
    next_after: int | None = Field(
        description="More may be there: repeat the request with this as `after`."
    )


@router.post(
    "/subscriptions",
    summary="Subscribe to events",
    status_code=201,
    response_model=NewSubscriptionView,
)
async def post_subscription(
    caller: CallerDep, order: SubscriptionOrder, ticket: TicketDep
) -> JSONResponse:
    """Let an address hear what becomes of objects. Scope `notifications:write`.

    Messages are signed as Standard Webhooks wants it, with the secret that is answered here once.
    Addresses of private networks are refused unless this deployment allows them.
    """
    await caller.read(WRITE, lambda _session, _principal: None)
    await vet_address(caller, order.url)

    def work(session: Session, principal: Principal) -> Answer:
        bucket = None
        if order.bucket is not None:
            bucket = get_bucket(session, principal.tenant_id, order.bucket)
        made = add_subscription(
            session,
            caller.api.deps.catalogue,
            principal.tenant_id,
            url=order.url,
            events=order.events,
            bucket_id=None if bucket is None else bucket.id,
            prefix=order.prefix,
            box=caller.api.deps.secrets,
        )
        shown = _view(session, made.subscription)
        return Answer(201, {**shown.model_dump(mode="json"), "secret": made.secret})

    return await write_once(caller, WRITE, ticket, work)


@router.get("/subscriptions", summary="List subscriptions")
async def get_subscriptions(caller: CallerDep) -> SubscriptionList:
    """The subscriptions of the key's tenant. Scope `notifications:read`."""

    def work(session: Session, principal: Principal) -> SubscriptionList:
        found = list_subscriptions(session, principal.tenant_id)
        return SubscriptionList(items=_views(session, found))

    return await caller.read(READ, work)


@router.get("/subscriptions/{subscription_id}", summary="Show a subscription")
async def get_subscription(caller: CallerDep, subscription_id: SubscriptionId) -> SubscriptionView:
    """A subscription of the key's tenant. Scope `notifications:read`."""

    def work(session: Session, principal: Principal) -> SubscriptionView:
        return _view(session, find_subscription(session, principal.tenant_id, subscription_id))

    return await caller.read(READ, work)


@router.patch("/subscriptions/{subscription_id}", summary="Switch a subscription on or off")
async def patch_subscription(
    caller: CallerDep, subscription_id: SubscriptionId, change: SubscriptionChange
) -> SubscriptionView:
    """Let it hear again, or no more; what waits for it is sent at once, whatever its rest was.

    Scope `notifications:write`.
    """

    def work(session: Session, principal: Principal) -> tuple[str, SubscriptionView]:
        if change.is_enabled:
            caller.api.deps.catalogue.need(QUEUE)
        found = find_subscription(session, principal.tenant_id, subscription_id, lock=True)
        enable(session, found, is_enabled=change.is_enabled)
        session.refresh(found)
        return principal.tenant_id, _view(session, found)

    tenant_id, shown = await caller.write(WRITE, work)
    if change.is_enabled:
        deps = caller.api.deps
        await caller.api.work.call(
            lambda: wake_deliveries(deps.database, deps.catalogue, tenant_id, subscription_id)
        )
    return shown


@router.delete("/subscriptions/{subscription_id}", summary="Unsubscribe", status_code=204)
async def remove_subscription(caller: CallerDep, subscription_id: SubscriptionId) -> None:
    """Remove a subscription; what was on its way to it is given up. Scope `notifications:write`."""

    def work(session: Session, principal: Principal) -> None:
        found = find_subscription(session, principal.tenant_id, subscription_id, lock=True)
        delete_subscription(session, found)

    await caller.write(WRITE, work)


@router.post("/subscriptions/{subscription_id}:rotate-secret", summary="Make another secret")
async def rotate(caller: CallerDep, subscription_id: SubscriptionId) -> SecretView:
    """Sign with one more secret, the older ones still sign as well. Scope `notifications:write`."""

    def work(session: Session, principal: Principal) -> SecretView:
        found = find_subscription(session, principal.tenant_id, subscription_id, lock=True)
        return SecretView(secret=rotate_secret(session, found, caller.api.deps.secrets))

    return await caller.write(WRITE, work)


@router.post(
    "/subscriptions/{subscription_id}:drop-old-secrets",
    summary="Sign with the newest secret only",
    status_code=204,
)
async def drop_secrets(caller: CallerDep, subscription_id: SubscriptionId) -> None:
    """End the change of secrets. Scope `notifications:write`."""

    def work(session: Session, principal: Principal) -> None:
        found = find_subscription(session, principal.tenant_id, subscription_id, lock=True)
        drop_old_secrets(session, found, caller.api.deps.secrets)

    await caller.write(WRITE, work)


@router.post(
    "/subscriptions/{subscription_id}:test",
    summary="Send a test event",
    status_code=202,
    response_model=DeliveryView,
)
async def test_subscription(
    caller: CallerDep, subscription_id: SubscriptionId, ticket: TicketDep
) -> JSONResponse:
    """Send an event without an object; its delivery tells what came of it.

    Also while the address has a rest, which ends if it answers. Scope `notifications:write`.
    """

    def work(session: Session, principal: Principal) -> Answer:
        found = find_subscription(session, principal.tenant_id, subscription_id, lock=True)
        delivery = send_test(session, caller.api.deps.catalogue, found)
        return Answer(202, _shown(session, delivery).model_dump(mode="json"))

    return await write_once(caller, WRITE, ticket, work)


@router.post(
    "/subscriptions/{subscription_id}:replay",
    summary="Send past events again",
    status_code=202,
    response_model=ReplayView,
)
async def replay_subscription(
    caller: CallerDep,
    subscription_id: SubscriptionId,
    ticket: TicketDep,
    order: Annotated[ReplayOrder | None, Body()] = None,
) -> JSONResponse:
    """Send what was given up, and what fits it now and was never sent to it.

    A thousand events at a time: repeat it with `after` as long as `next_after` is answered. A 409
    when the subscription is off. Scope `notifications:write`.
    """
    deps = caller.api.deps
    after = (order or ReplayOrder()).after

    def act(principal: Principal) -> Answer:
        def begin(session: Session) -> Replayed:
            found = find_subscription(session, principal.tenant_id, subscription_id, lock=True)
            return replay(session, deps.catalogue, found, after=after)

        replayed = deps.database.run_session(begin)
        begun = replayed.begun
        for task_id in replayed.again:
            try:
                deps.outbox.retry(task_id, by=actor(principal), reason="replay")
            except (ConflictError, NotFoundError):
                # Somebody else has sent it again meanwhile, or its task was purged just now.
                continue
            begun += 1
        return Answer(202, {"begun": begun, "next_after": replayed.next_after})

    return await act_once(caller, WRITE, ticket, act)


@router.get("/deliveries", summary="List deliveries, newest first")
async def get_deliveries(
    caller: CallerDep,
    paging: PagingDep,
    subscription: Annotated[int, Query(ge=1, le=MAX_ID, description="To this subscription.")],
    state: Annotated[DeliveryState | None, Query(description="Those in this state.")] = None,
) -> PageView[DeliveryView]:
    """What was sent to a subscription, and what came of it. Scope `notifications:read`."""

    def work(session: Session, principal: Principal) -> list[DeliveryView]:
        found = find_subscription(session, principal.tenant_id, subscription)
        where = [Delivery.subscription_id == found.id]
        if state is not None:
            where.append(Delivery.state == state)
        return _all_shown(session, paging.newest(session, Delivery, *where))

    return paging.show(await caller.read(READ, work), DeliveryView)


@router.post(
    "/deliveries/{delivery_id}:replay",
    summary="Send one event again",
    status_code=202,
    response_model=DeliveryView,
)
async def replay_delivery(
    caller: CallerDep, delivery_id: DeliveryId, ticket: TicketDep
) -> JSONResponse:
    """Send it again, also what has arrived; a 409 while it is on its way, or nobody hears it.

    Scope `notifications:write`.
    """
    deps = caller.api.deps

    def act(principal: Principal) -> Answer:
        def find(session: Session) -> int | None:
            delivery = session.get(Delivery, delivery_id)
            if delivery is None or delivery.tenant_id != principal.tenant_id:
                raise NotFoundError("there is no such delivery", code="delivery_not_found")
            need_receiver(session.get(Subscription, delivery.subscription_id))
            is_sent = send_anew(session, deps.catalogue, delivery_id)
            return None if is_sent else delivery.task_id

        deps.catalogue.need(QUEUE)
        task_id = deps.database.run_session(find)
        if task_id is not None:
            deps.outbox.retry(task_id, by=actor(principal), reason="replay", force=True)

        def show(session: Session) -> DeliveryView:
            return _shown(session, session.get_one(Delivery, delivery_id))

        shown = deps.database.run_session(show, read_only=True)
        return Answer(202, shown.model_dump(mode="json"))

    return await act_once(caller, WRITE, ticket, act)


def _view(session: Session, subscription: Subscription) -> SubscriptionView:
    return _views(session, [subscription])[0]


def _views(session: Session, found: Sequence[Subscription]) -> list[SubscriptionView]:
    """Return what is shown of subscriptions, with the names of their buckets."""
    ids = {one.bucket_id for one in found} - {None}
    names: dict[int | None, str] = {}
    if ids:
        query = sa.select(Bucket.id, Bucket.name).where(Bucket.id.in_(ids))
        names = {row.id: row.name for row in session.execute(query)}
    own = SubscriptionView.model_fields.keys() - {"bucket", "is_bucket_gone"}
    return [
        SubscriptionView(
            bucket=names.get(one.bucket_id),
            is_bucket_gone=one.bucket_id is not None and one.bucket_id not in names,
            **{name: getattr(one, name) for name in own},
        )
        for one in found
    ]


def _shown(session: Session, delivery: Delivery) -> DeliveryView:
    return _all_shown(session, [delivery])[0]


def _all_shown(session: Session, deliveries: Sequence[Delivery]) -> list[DeliveryView]:
    """Return what is shown of deliveries, with their events, read at once for all of them."""
    ids = {one.notification_id for one in deliveries}
    query = sa.select(Notification).where(Notification.id.in_(ids))
    events = {event.id: event for event in session.scalars(query)}
    own = DeliveryView.model_fields.keys() - {"type", "data"}
    return [
        DeliveryView(
            type=events[one.notification_id].type,
            data=shown_data(events[one.notification_id]),
            **{name: getattr(one, name) for name in own},
        )
        for one in deliveries
    ]
