"""Deletes all keys with a prefix, page by page, as they were when it was asked for.

Each page is one fenced transaction that also moves the cursor, so that a death or a cancel in
between leaves whole keys deleted or untouched, and whoever goes on begins behind the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from services.delete import rules
from shared.catalog import fenced, removals
from shared.catalog.context import Catalogue
from shared.catalog.models import Removal, RemovalState
from shared.catalog.payloads import DeletePrefix
from shared.core.clock import Deadline
from shared.core.errors import BloxError
from shared.core.failpoints import failpoint
from shared.outbox import Execution
from shared.outbox.completion import Completion
from shared.outbox.db import Database
from shared.storage.staging import Staging

#: Removing staged files; they lie on a local or mounted file system.
_REMOVE_SECONDS = 10.0

_log = structlog.get_logger("delete.prefix")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixDeps:
    """What the handler works with. `page_keys` is what one transaction deletes."""

    db: Database
    catalogue: Catalogue
    staging: Staging
    page_keys: int = rules.PAGE_KEYS
    report_seconds: float = rules.REPORT_SECONDS


def delete_prefix(execution: Execution, payload: DeletePrefix, deps: PrefixDeps) -> None:
    """Delete the keys of one removal, from where it got to.

    Keys that are held, or were written after the request, stay and are counted. Completes the task
    together with the removal's row.
    """
    failpoint("prefix.claimed")
    report = Deadline(deps.report_seconds)
    removal = _read(payload, deps)
    after = removal.cursor
    while removal.state == RemovalState.RUNNING:
        execution.check()
        found = _look(removal, after, deps)
        for start in range(0, len(found.keys), deps.page_keys):
            page = found.keys[start : start + deps.page_keys]
            removal = _delete_page(execution, removal, page, deps)
            failpoint("prefix.after_page")
            if report.expired():
                _report(execution, removal)
                report = Deadline(deps.report_seconds)
        if found.last is None:
            break
        after = found.last
    _finish(execution, payload, deps)


def _read(payload: DeletePrefix, deps: PrefixDeps) -> Removal:
    return deps.db.run_session(
        lambda session: session.get_one(Removal, payload.removal_id), read_only=True
    )


def _look(removal: Removal, after: str | None, deps: PrefixDeps) -> removals.Look:
    return deps.db.run_session(
        lambda session: removals.look(session, removal, after=after), read_only=True
    )


def _delete_page(
    execution: Execution, removal: Removal, keys: Sequence[removals.Named], deps: PrefixDeps
) -> Removal:
    commit = removals.PageCommit(
        deps.catalogue,
        removal_id=removal.id,
        keys=keys,
        after=removal.cursor,
        task_id=execution.task.id,
    )
    written = fenced.fenced(execution, deps.db, lock=commit.lock, body=commit.apply)
    _discard(deps.staging, commit.released)
    return written


def _finish(execution: Execution, payload: DeletePrefix, deps: PrefixDeps) -> None:
    def write(tx: Completion) -> None:
        removal = removals.finish_removal(
            tx.session, payload.removal_id, state=RemovalState.COMPLETED
        )
        tx.result = _counts(removal)
        tx.emit("progress", _counts(removal))

    failpoint("prefix.before_commit")
    fenced.complete(
        execution,
        deps.db,
        lock=lambda session: removals.lock_removal(session, payload.removal_id),
        body=write,
    )
    failpoint("prefix.after_commit")


def _report(execution: Execution, removal: Removal) -> None:
    counts = _counts(removal)
    execution.emit("progress", counts)
    # Whoever has got this far has not crashed in vain.
    done = removal.deleted_keys + removal.newer_keys + removal.held_keys
    execution.checkpoint(counts, progress=done)


def _counts(removal: Removal) -> dict[str, Any]:
    return {
        "removal_id": removal.id,
        "deleted_keys": removal.deleted_keys,
        "deleted_bytes": removal.deleted_bytes,
        "newer_keys": removal.newer_keys,
        "held_keys": removal.held_keys,
    }


def _discard(staging: Staging, keys: Sequence[str]) -> None:
    """Remove staged files that no row names any more; what stays is the cleanup's."""
    deadline = Deadline(_REMOVE_SECONDS)
    for key in keys:
        try:
            staging.remove(key, deadline=deadline)
        except BloxError as error:
            _log.warning("staged_file_left", key=key, error=str(error))
