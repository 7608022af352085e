"""A bucket for which work is ordered: it is there, its queue is served, and there is room."""

from __future__ import annotations

from sqlalchemy.orm import Session

from services.api.deps import Api
from shared.catalog.accounts import Principal
from shared.catalog.buckets import get_bucket
from shared.catalog.models import Bucket
from shared.catalog.regions import region_of


def admitted_bucket(
    api: Api, session: Session, principal: Principal, name: str, *, queue: str
) -> Bucket:
    """Return the caller's bucket of this name, which may have one more task of the queue.

    Raises SwitchedOffError, NotFoundError (`bucket_not_found`) and BacklogError.
    """
    api.deps.catalogue.need(queue)
    bucket = get_bucket(session, principal.tenant_id, name)
    api.backlog.check(
        session,
        queue=queue,
        region=region_of(session, bucket, queue),
        tenant_id=principal.tenant_id,
    )
    return bucket
