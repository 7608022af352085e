"""Content whose review began before the bucket's rules changed, and lets it pass after that.

It becomes readable as the rules say that it came under, and is reviewed again as if it had been
there at the change.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.context import Catalogue
from shared.catalog.models import Bucket, ReviewRun, ReviewRunState, Version
from shared.catalog.rereviews.runs import lock_run, plan_version

_GOES_ON = (ReviewRunState.RUNNING, ReviewRunState.PLANNED)


def follow_change(
    session: Session, catalogue: Catalogue, version: Version, *, judged_by: str | None
) -> bool:
    """Plan the re-review of a version that passes now under the policy version `judged_by`.

    The caller has locked the version's key, and shares the bucket's lock, so that no change is
    overlooked. True when there is one to come: the bucket's rules are others by now, and a run has
    begun to review what is there.
    """
    bucket = session.get(Bucket, version.bucket_id)
    if bucket is None or bucket.review_policy_version in (None, judged_by):
        return False
    run_id = session.scalar(
        sa.select(sa.func.max(ReviewRun.id)).where(
            ReviewRun.bucket_id == bucket.id,
            ReviewRun.policy_version == bucket.review_policy_version,
            ReviewRun.state.in_(_GOES_ON),
        )
    )
    run = None if run_id is None else lock_run(session, run_id)
    if run is None or run.state not in _GOES_ON:
        return False
    return plan_version(session, catalogue, run, bucket, version)
