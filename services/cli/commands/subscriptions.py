"""`blox subscriptions`: who hears of events, what was sent, and sending it again."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer
from sqlalchemy.orm import Session

from services.cli.commands.common import (
    HERE,
    MAX_ID,
    IdArgument,
    TenantArgument,
    change,
    fields_of,
    reading,
    who,
)
from services.cli.commands.listing import (
    DEFAULT_LIMIT,
    BeforeOption,
    LimitOption,
    StateOption,
    Table,
)
from services.cli.render import Format, FormatOption, show_fields, show_rows
from services.cli.stack import DirectoryOption, open_parts
from shared.catalog.context import Catalogue
from shared.catalog.models import Delivery, DeliveryState
from shared.catalog.notifying.subscriptions import (
    enable,
    find_subscription,
    list_subscriptions,
    replay,
    send_test,
)
from shared.catalog.notifying.waking import wake_deliveries
from shared.core.errors import ConflictError, NotFoundError

app = typer.Typer(help="Look at event notifications, and send them again.", no_args_is_help=True)

_COLUMNS = (
    *("id", "url", "events", "bucket_id", "prefix", "is_enabled", "disabled_code"),
    *("failures", "failing_until", "created_at"),
)
_DELIVERIES = Table(
    entity=Delivery,
    columns=(
        *("id", "notification_id", "state", "tries", "status", "error_code", "task_id"),
        *("created_at", "ended_at"),
    ),
    empty="no deliveries",
    states=DeliveryState,
)
#: What nobody is shown.
_HIDDEN = ("secrets",)


@app.command("list")
def list_(
    tenant: TenantArgument,
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = HERE,
) -> None:
    """List a tenant's subscriptions; those with `failing_until` have a rest."""
    with reading(directory) as session:
        rows = [fields_of(one, hidden=_HIDDEN) for one in list_subscriptions(session, tenant)]
    show_rows(rows, _COLUMNS, output, empty="no subscriptions")


@app.command()
def deliveries(
    tenant: TenantArgument,
    subscription_id: IdArgument,
    state: StateOption = None,
    before: BeforeOption = None,
    limit: LimitOption = DEFAULT_LIMIT,
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = HERE,
) -> None:
    """List what was sent to a subscription, newest first."""
    with reading(directory) as session:
        own = Delivery.subscription_id == find_subscription(session, tenant, subscription_id).id
        rows = _DELIVERIES.read(session, own, state=state, before=before, limit=limit)
    _DELIVERIES.show(rows, output, limit=limit)


@app.command("test")
def try_(
    tenant: TenantArgument,
    subscription_id: IdArgument,
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = HERE,
) -> None:
    """Send a test event, also during a rest, which ends if it arrives."""

    def begin(session: Session, catalogue: Catalogue) -> dict[str, Any]:
        found = find_subscription(session, tenant, subscription_id, lock=True)
        return fields_of(send_test(session, catalogue, found))

    show_fields(change(directory, begin), output)


@app.command()
def on(
    tenant: TenantArgument,
    subscription_id: IdArgument,
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = HERE,
) -> None:
    """Let it hear events again; what waits for it is sent at once."""
    with open_parts(directory) as parts:
        db = parts.outbox.context.db
        fields = db.run_session(
            partial(_switch, tenant=tenant, subscription_id=subscription_id, is_enabled=True)
        )
        woken = wake_deliveries(db, parts.catalogue, tenant, subscription_id)
    show_fields({**fields, "sent_at_once": woken}, output)


@app.command()
def off(
    tenant: TenantArgument,
    subscription_id: IdArgument,
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = HERE,
) -> None:
    """Let it hear no events; what is on its way to it fails, and can be sent again."""

    def work(session: Session, _: Catalogue) -> dict[str, Any]:
        return _switch(session, tenant=tenant, subscription_id=subscription_id, is_enabled=False)

    show_fields(change(directory, work), output)


@app.command("replay")
def replay_(
    tenant: TenantArgument,
    subscription_id: IdArgument,
    after: Annotated[int, typer.Option(min=0, max=MAX_ID, help="Only events with larger ids.")] = 0,
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = HERE,
) -> None:
    """Send again what was given up, and past events that it has not got."""
    begun = 0
    with open_parts(directory) as parts:
        while True:
            done = parts.outbox.context.db.run_session(
                lambda session, since=after: replay(  # type: ignore[misc]
                    session,
                    parts.catalogue,
                    find_subscription(session, tenant, subscription_id, lock=True),
                    after=since,
                )
            )
            begun += done.begun
            for task_id in done.again:
                try:
                    parts.outbox.retry(task_id, by=who(), reason="replay")
                except (ConflictError, NotFoundError):
                    # Somebody else has sent it again, or its task was purged just now.
                    continue
                begun += 1
            if done.next_after is None:
                break
            after = done.next_after
    show_fields({"id": subscription_id, "begun": begun}, output)


def _switch(
    session: Session, *, tenant: str, subscription_id: int, is_enabled: bool
) -> dict[str, Any]:
    found = find_subscription(session, tenant, subscription_id, lock=True)
    enable(session, found, is_enabled=is_enabled)
    session.refresh(found)
    return fields_of(found, hidden=_HIDDEN)
