"""Restores that an operator asks for: opened with the manifest that they read, ended once."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Literal

import pydantic
import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.backups.runs import lock_run
from shared.catalog.buckets import way_of
from shared.catalog.context import Catalogue
from shared.catalog.models import (
    BackupRun,
    BackupRunState,
    Bucket,
    Restore,
    RestoreState,
    utc_clock,
)
from shared.catalog.payloads import RESTORE_RUN, RunRestore
from shared.catalog.regions import region_of
from shared.core.errors import ConflictError, InvalidError, NotFoundError

Policy = Literal["never", "if-newer", "always"]


class RestoreSpec(pydantic.BaseModel):
    """What is to be restored.

    `keys`: bring keys back as the newest backup at or before `at` has them; a key that is there now
    is overwritten `never`, `if-newer` (the backup's version is the newer one) or `always`.
    `content`: keep the keys as they are, look for the bytes of each, and bring back what is lost.
    """

    model_config = pydantic.ConfigDict(extra="forbid")

    mode: Literal["keys", "content"] = "keys"
    prefix: Annotated[str, pydantic.Field(max_length=1024)] = ""
    at: dt.datetime | None = pydantic.Field(
        default=None, description="A point in time; without it the newest backup."
    )
    run: Annotated[
        int | None,
        pydantic.Field(ge=1, le=2**63 - 1, description="A backup run, in place of `at`."),
    ] = None
    policy: Policy = "never"
    deep: bool = pydantic.Field(
        default=False, description="`content`: read every copy and compare its SHA-256."
    )
    dry_run: bool = pydantic.Field(
        default=False, description="Count keys and bytes only; nothing is written."
    )

    @pydantic.field_validator("prefix")
    @classmethod
    def _fits(cls, prefix: str) -> str:
        try:
            length = len(prefix.encode())
        except UnicodeEncodeError:
            raise ValueError("the prefix is not valid Unicode") from None
        if length > 1024:
            raise ValueError("a prefix has at most 1024 bytes")
        return prefix


def open_restore(
    session: Session,
    catalogue: Catalogue,
    bucket: Bucket,
    spec: RestoreSpec,
    *,
    at: dt.datetime | None,
    trace_parent: str | None = None,
) -> Restore:
    """Open a restore with its task. `at` is the naive UTC of `spec.at`.

    Raises NotFoundError (`backup_not_found`) when no complete run fits, and InvalidError
    (`restore_mode`) for what the mode would not heed.
    """
    _check_mode(spec)
    run_id = None
    if spec.mode == "keys":
        # What is to come back is written as a PUT is.
        catalogue.need(*way_of(bucket))
        run_id = _choose_run(session, bucket, spec, at)
    restore = Restore(
        tenant_id=bucket.tenant_id,
        bucket_id=bucket.id,
        mode=spec.mode,
        prefix=spec.prefix,
        at=at,
        policy=spec.policy,
        is_dry_run=int(spec.dry_run),
        run_id=run_id,
        state=RestoreState.OPEN,
        created_at=utc_clock(),
    )
    session.add(restore)
    session.flush()
    restore.task_id = catalogue.tasks.enqueue(
        session,
        RESTORE_RUN,
        RunRestore(restore_id=restore.id, deep=spec.deep),
        tenant_id=bucket.tenant_id,
        region=region_of(session, bucket, "restore"),
        trace_parent=trace_parent,
        dedupe_key=f"restore:{restore.id}",
    ).id
    session.flush()
    session.refresh(restore)
    return restore


def _check_mode(spec: RestoreSpec) -> None:
    if spec.mode == "content":
        unheeded = {
            "at": spec.at is not None,
            "run": spec.run is not None,
            "policy": spec.policy != "never",
        }
    else:
        unheeded = {"deep": spec.deep}
    names = [name for name, is_given in unheeded.items() if is_given]
    if names:
        raise InvalidError(
            f"mode `{spec.mode}` does not heed {' and '.join(names)}", code="restore_mode"
        )


def _choose_run(session: Session, bucket: Bucket, spec: RestoreSpec, at: dt.datetime | None) -> int:
    query = sa.select(BackupRun.id).where(
        BackupRun.bucket_id == bucket.id, BackupRun.state == BackupRunState.COMPLETE
    )
    if spec.run is not None:
        query = query.where(BackupRun.id == spec.run)
    if at is not None:
        query = query.where(BackupRun.snapshot_at <= at)
    query = query.order_by(BackupRun.snapshot_at.desc(), BackupRun.id.desc()).limit(1)
    while (found := session.scalar(query)) is not None:
        # It is pruned either before this lock, or not while the restore is open.
        run = lock_run(session, found)
        if run is not None and run.state == BackupRunState.COMPLETE:
            return found
    raise NotFoundError("no complete backup fits", code="backup_not_found")


def lock_restore(session: Session, restore_id: int) -> Restore | None:
    """Lock a restore and read it anew; None when it is not there."""
    return session.scalars(
        sa.select(Restore)
        .where(Restore.id == restore_id)
        .with_for_update()
        .execution_options(populate_existing=True)
    ).one_or_none()


def end_restore(restore: Restore, state: RestoreState, *, code: str | None = None) -> None:
    """End a locked open restore."""
    restore.state, restore.error_code, restore.ended_at = state, code, utc_clock()


def cancel_restore(session: Session, catalogue: Catalogue, restore: Restore) -> Restore:
    """Cancel a restore; what it has restored stays. Raises ConflictError (`restore_over`)."""
    locked = lock_restore(session, restore.id)
    if locked is None or locked.state == RestoreState.CANCELLED:
        return restore
    if locked.state != RestoreState.OPEN:
        raise ConflictError(
            f"the restore is {locked.state}", code="restore_over", state=locked.state
        )
    end_restore(locked, RestoreState.CANCELLED, code="cancelled")
    session.flush()
    if locked.task_id is not None:
        catalogue.tasks.supersede(session, [locked.task_id])
    session.refresh(locked)
    return locked
