"""Reviewers that a tenant runs elsewhere: where they are asked, and the secrets that sign.

The caller has vetted the addresses; they are vetted again for every connection.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.limits import is_name
from shared.catalog.models import Bucket, WebhookReviewer, utc_clock
from shared.catalog.optional_reviewers import OptionalReviewers
from shared.catalog.review_policy import ReviewPolicy
from shared.catalog.reviewer_specs import WebhookSpec
from shared.catalog.secret_box import SecretBox
from shared.core.errors import ConflictError, InvalidError, NotFoundError
from shared.core.webhooks import MAX_SECRETS, check_secret, make_secret

#: Stands in a status address for the id of the step that is asked about.
STEP_PLACE = "{step_id}"


@dataclass(frozen=True, slots=True)
class Door:
    """A reviewer as it is asked. All secrets sign; any of them may sign its answers."""

    url: str
    status_url: str | None
    secrets: tuple[str, ...] = field(repr=False)

    def status_address(self, step_id: int) -> str | None:
        """Return where to ask how far a step is, None where nobody can tell."""
        if self.status_url is None:
            return None
        return self.status_url.replace(STEP_PLACE, str(step_id))


@dataclass(frozen=True, slots=True)
class PutReviewer:
    """The row, whether it is new, and the secret that was made for it, which is shown once."""

    reviewer: WebhookReviewer
    created: bool
    secret: str | None = field(default=None, repr=False)


def put_reviewer(
    session: Session,
    tenant_id: str,
    name: str,
    *,
    url: str,
    status_url: str | None,
    secrets: Sequence[str] | None,
    box: SecretBox,
) -> PutReviewer:
    """Register a reviewer or change it; `secrets` None keeps those it has, or makes one.

    Raises InvalidError for secrets that are none.
    """
    if status_url is not None and STEP_PLACE not in status_url:
        raise InvalidError(
            f"a status address names the step by {STEP_PLACE}", code="status_url_invalid"
        )
    record = _locked(session, tenant_id, name)
    created, made = record is None, None
    if secrets is None and record is None:
        made = make_secret()
        secrets = [made]
    if secrets is not None and not 1 <= len(secrets) <= MAX_SECRETS:
        raise InvalidError(
            f"a reviewer has 1 to {MAX_SECRETS} secrets", code="webhook_secret_invalid"
        )
    if record is None:
        record = WebhookReviewer(tenant_id=tenant_id, name=name, created_at=utc_clock())
        session.add(record)
    record.url, record.status_url = url, status_url
    if secrets is not None:
        kept = [check_secret(one) for one in secrets]
        record.secrets = box.seal({"secrets": json.dumps(kept)})
    record.updated_at = utc_clock()
    session.flush()
    session.refresh(record)
    return PutReviewer(record, created, made)


def list_reviewers(session: Session, tenant_id: str) -> list[WebhookReviewer]:
    """Return a tenant's reviewers by name. Secrets stay sealed."""
    statement = sa.select(WebhookReviewer).where(WebhookReviewer.tenant_id == tenant_id)
    return list(session.scalars(statement.order_by(WebhookReviewer.name)))


def get_reviewer(session: Session, tenant_id: str, name: str) -> WebhookReviewer:
    """Return a tenant's reviewer. Raises NotFoundError (`reviewer_not_found`)."""
    record = _find(session, tenant_id, name)
    if record is None:
        raise NotFoundError("there is no such reviewer", code="reviewer_not_found")
    return record


def delete_reviewer(session: Session, tenant_id: str, name: str) -> None:
    """Remove a reviewer.

    Raises NotFoundError, and ConflictError (`reviewer_in_use`) while a bucket's policy names it.
    Reviews under way that ask it end by their fail mode.
    """
    record = _locked(session, tenant_id, name)
    if record is None:
        raise NotFoundError("there is no such reviewer", code="reviewer_not_found")
    policies = session.scalars(sa.select(Bucket.review_policy).where(Bucket.tenant_id == tenant_id))
    if any(name in _asked_by(policy) for policy in policies):
        raise ConflictError("a bucket's review policy names it", code="reviewer_in_use")
    session.delete(record)
    session.flush()


def check_policy(
    session: Session, tenant_id: str, policy: ReviewPolicy | None, optional: OptionalReviewers
) -> None:
    """Judge a policy that is to be saved in this transaction; its reviewers are kept until then.

    Raises InvalidError when a reviewer is not registered (`reviewer_unknown`) or not here.
    """
    if policy is None:
        return
    optional.check(policy)
    names = [spec.reviewer for spec in policy.reviewers if isinstance(spec, WebhookSpec)]
    if not names:
        return
    known = set(
        session.scalars(
            sa.select(WebhookReviewer.name)
            .where(WebhookReviewer.tenant_id == tenant_id, WebhookReviewer.name.in_(names))
            .order_by(WebhookReviewer.name)
            .with_for_update(read=True)
        )
    )
    unknown = sorted(set(names) - known)
    if unknown:
        raise InvalidError(
            f"no reviewer is registered as {', '.join(unknown)}",
            code="reviewer_unknown",
            reviewers=unknown,
        )


def find_door(session: Session, box: SecretBox, tenant_id: str, name: str) -> Door | None:
    """Return how a reviewer is asked, None when there is none of this name any more."""
    record = _find(session, tenant_id, name)
    if record is None:
        return None
    secrets = json.loads(box.open(record.secrets)["secrets"])
    return Door(record.url, record.status_url, tuple(secrets))


def _asked_by(policy: dict[str, object] | None) -> set[str]:
    listed = (policy or {}).get("reviewers") or []
    assert isinstance(listed, list)
    return {str(spec["reviewer"]) for spec in listed if spec.get("kind") == "webhook"}


def _find(session: Session, tenant_id: str, name: str) -> WebhookReviewer | None:
    if not (is_name(tenant_id) and is_name(name)):
        return None
    statement = sa.select(WebhookReviewer).where(
        WebhookReviewer.tenant_id == tenant_id, WebhookReviewer.name == name
    )
    return session.scalars(statement.execution_options(populate_existing=True)).one_or_none()


def _locked(session: Session, tenant_id: str, name: str) -> WebhookReviewer | None:
    if not (is_name(tenant_id) and is_name(name)):
        return None
    return session.scalars(
        sa.select(WebhookReviewer)
        .where(WebhookReviewer.tenant_id == tenant_id, WebhookReviewer.name == name)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one_or_none()
