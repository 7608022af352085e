"""`blox buckets`: list and show a tenant's buckets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from sqlalchemy.orm import Session

from services.cli.render import Format, FormatOption, show_fields, show_rows
from services.cli.stack import DirectoryOption, open_parts
from shared.catalog.accounts import list_tenants
from shared.catalog.buckets import get_bucket, list_buckets
from shared.catalog.models import Bucket
from shared.catalog.rereviews.runs import list_runs, show_run

app = typer.Typer(help="Look at buckets.", no_args_is_help=True)

_HERE = Path(".blox")
_COLUMNS = ("tenant", "name", "region", "channels", "reviewed", "max_object_bytes", "created_at")
_PAGE = 1000


@app.command("list")
def list_(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant; default: all.")] = None,
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = _HERE,
) -> None:
    """List buckets with their rules."""
    with open_parts(directory) as parts, Session(parts.engine) as session:
        tenants = [tenant] if tenant is not None else _tenants(session)
        rows = [_row(bucket) for one in tenants for bucket in _buckets(session, one)]
    show_rows(rows, _COLUMNS, output, empty="no buckets")


@app.command()
def show(
    tenant: Annotated[str, typer.Argument(help="The tenant's id.")],
    name: Annotated[str, typer.Argument(help="The bucket's name.")],
    output: FormatOption = Format.TABLE,
    directory: DirectoryOption = _HERE,
) -> None:
    """Show one bucket with all its rules."""
    with open_parts(directory) as parts, Session(parts.engine) as session:
        bucket = get_bucket(session, tenant, name)
        fields = {
            **_row(bucket),
            "region_fallback_seconds": bucket.region_fallback_seconds,
            "replica_channels": list(bucket.replica_channels or ()),
            "backup": bucket.backup,
            "origin": _without_headers(bucket.origin),
            "lifecycle": bucket.lifecycle,
            "review_policy": bucket.review_policy,
            "re_review": _newest_run(session, bucket),
        }
    show_fields(fields, output)


def _tenants(session: Session) -> list[str]:
    found: list[str] = []
    while page := list_tenants(session, after=found[-1] if found else "", limit=_PAGE):
        found += [tenant.id for tenant in page]
    return found


def _buckets(session: Session, tenant: str) -> list[Bucket]:
    found: list[Bucket] = []
    while page := list_buckets(session, tenant, after=found[-1].name if found else "", limit=_PAGE):
        found += page
    return found


def _newest_run(session: Session, bucket: Bucket) -> dict[str, Any] | None:
    """Return how far the bucket's newest run of re-reviews is, None without any."""
    for run in list_runs(session, bucket.id, limit=1):
        progress = show_run(session, bucket.tenant_id, run.id)
        return {
            "id": run.id,
            "state": run.state,
            "seen": run.seen,
            "planned": run.planned,
            "reviews": progress.reviews,
            "task_id": run.task_id,
        }
    return None


def _without_headers(origin: dict[str, Any] | None) -> list[dict[str, Any]] | None:
    """Return the rules without what is sent to the sources, which is sealed."""
    if origin is None:
        return None
    rules: list[dict[str, Any]] = []
    for rule in origin.get("rules", ()):
        sources = [source["url"] for source in rule.get("sources", ())]
        rules.append({**rule, "sources": sources})
    return rules


def _row(bucket: Bucket) -> dict[str, Any]:
    return {
        "tenant": bucket.tenant_id,
        "name": bucket.name,
        "region": bucket.region,
        "channels": list(bucket.channels),
        "reviewed": bucket.review_policy is not None,
        "max_object_bytes": bucket.max_object_bytes,
        "created_at": bucket.created_at,
    }
