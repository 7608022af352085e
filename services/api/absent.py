"""A key that is not there, in a bucket with origins: what its rule says that a GET does.

`wait` waits for the pull, bounded; `redirect` sends the client to the origin; `background` answers
404. Each begins the pull, unless the key was missed lately.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from services.api.deps import Caller
from services.api.tracing import trace_parent
from shared.catalog.accounts import Principal
from shared.catalog.buckets import get_bucket, way_of
from shared.catalog.models import Bucket
from shared.catalog.origins.policy import StoredRule
from shared.catalog.origins.pulling import NothingToPull, Pulling, begin_pull, is_missed, rule_of
from shared.catalog.payloads import ORIGIN_PULL
from shared.catalog.reads import Readable, open_version
from shared.catalog.regions import region_of
from shared.core.errors import NotFoundError
from shared.core.failpoints import failpoint
from shared.fetch import parse_url

QUEUE = ORIGIN_PULL.partition(".")[0]
_SCOPE = "objects:read"


@dataclass(frozen=True, slots=True)
class Absent:
    """A key that its rule lets be fetched."""

    bucket: str
    key: str
    rule: StoredRule


async def look_up(request: Request, caller: Caller, bucket: str, key: str) -> Readable | Response:
    """Return what a GET serves, or the answer that sends it elsewhere.

    Raises NotFoundError, and OriginPending while the object is still on its way.
    """
    found = await caller.read(
        _SCOPE, lambda session, principal: _find(caller, session, principal, bucket, key)
    )
    if isinstance(found, Readable):
        return found
    begun = await _begin(request, caller, found)
    if isinstance(begun, Pulling):
        failpoint("api.origin.begun")
        match found.rule.mode:
            case "background":
                raise _not_found()
            case "redirect":
                return _redirect(found)
            case _:
                await caller.api.pulls.wait(begun.pull_id, found.rule.wait_seconds)
    elif begun.reason != "present":
        raise _not_found()

    def again(session: Session, principal: Principal) -> Readable:
        return open_version(session, get_bucket(session, principal.tenant_id, bucket), key)

    return await caller.read(_SCOPE, again)


def _find(
    caller: Caller, session: Session, principal: Principal, name: str, key: str
) -> Readable | Absent:
    bucket = get_bucket(session, principal.tenant_id, name)
    try:
        return open_version(session, bucket, key)
    except NotFoundError:
        rule = _rule(caller, session, bucket, key)
        if rule is None:
            raise
        return Absent(name, key, rule)


def _rule(caller: Caller, session: Session, bucket: Bucket, key: str) -> StoredRule | None:
    """Return the rule by which a key may be pulled now."""
    catalogue = caller.api.deps.catalogue
    if not all(catalogue.serves(queue) for queue in (QUEUE, *way_of(bucket))):
        return None
    rule = rule_of(bucket, key)
    if rule is None or is_missed(session, bucket.id, key, rule.id):
        return None
    return rule


async def _begin(request: Request, caller: Caller, absent: Absent) -> Pulling | NothingToPull:
    api = caller.api
    trace = trace_parent(request)

    def work(session: Session, principal: Principal) -> tuple[Pulling | NothingToPull, str, str]:
        bucket = get_bucket(session, principal.tenant_id, absent.bucket)
        region = region_of(session, bucket, QUEUE)
        api.backlog.check(session, queue=QUEUE, region=region, tenant_id=principal.tenant_id)
        begun = begin_pull(
            session, api.deps.catalogue, bucket, absent.key, absent.rule, trace_parent=trace
        )
        return begun, region, principal.tenant_id

    begun, region, tenant_id = await caller.write(_SCOPE, work)
    if isinstance(begun, Pulling) and begun.created:
        api.backlog.add(queue=QUEUE, region=region, tenant_id=tenant_id)
    return begun


def _redirect(absent: Absent) -> Response:
    # As it is fetched: a header takes no letters that a rule's address may have.
    address = parse_url(absent.rule.url(0, absent.key)).url
    headers = {"location": address, "cache-control": "no-store"}
    return Response(status_code=302, headers=headers)


def _not_found() -> NotFoundError:
    return NotFoundError("there is no such object", code="object_not_found")
