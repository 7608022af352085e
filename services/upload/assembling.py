"""Joins the parts of a resumable upload: parts → one staging file → the commit of its version.

A joining that is cut short goes on in whatever process: the task's checkpoint names the file and
its parts. No worker removes that file, since a later execution may have committed it; the cleanup
takes what no row and no checkpoint names.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from services.upload.trying import Deps
from shared.catalog import fenced
from shared.catalog.payloads import AssembleUpload
from shared.catalog.puts import Staged
from shared.catalog.uploading.assembly import (
    Assembled,
    Assembly,
    AssemblyCommit,
    read_assembly,
)
from shared.catalog.uploading.rules import multipart_etag
from shared.core.clock import Deadline
from shared.core.errors import CorruptError, InvalidError, PermanentError, RequestError
from shared.core.failpoints import failpoint
from shared.core.outcomes import Fail
from shared.outbox import Execution
from shared.outbox.completion import Completion
from shared.storage.errors import SourceError
from shared.storage.staging_joins import Joined, JoinProgress, demand_sha256, join

__all__ = ["assemble"]

#: Bytes between two events that tell how far it has come.
TELL_BYTES = 64 * 1024 * 1024
#: Seconds for removing files whose time is over; failing is harmless.
TIDY_SECONDS = 10.0
TIDY_SECONDS_PER_FILE = 0.1

_log = structlog.get_logger("upload")


def assemble(execution: Execution, payload: AssembleUpload, deps: Deps) -> Fail | None:
    """Make a version of a frozen session's parts, as a PUT of the whole would.

    Completes the task in the commit that also gives the session its result. A whole that is not
    what was declared, or that a condition, a limit or the bucket does not let in, fails the task;
    `on_end` tells the session why.
    """
    failpoint("assemble.claimed")
    task = execution.task
    assembly = deps.db.run_session(
        lambda session: read_assembly(session, payload, task_id=task.id), read_only=True
    )
    if assembly is None:
        return None
    try:
        staged = _gather(execution, deps, assembly)
    except InvalidError as error:
        facts = ", ".join(f"{name} {value}" for name, value in error.facts.items())
        return Fail(error.code, f"{error}: {facts}")
    except (SourceError, CorruptError):
        # Gone because the session was given up meanwhile? Then that is how the task ends.
        deps.db.run_session(
            lambda session: read_assembly(session, payload, task_id=task.id),
            read_only=True,
        )
        raise
    failpoint("assemble.after_bytes")
    try:
        done = _commit(execution, deps, assembly, staged)
    except RequestError as error:
        return Fail(error.code, str(error))
    failpoint("assemble.after_commit")
    _remove(deps, done.released)
    failpoint("assemble.after_release")
    return None


def _gather(execution: Execution, deps: Deps, assembly: Assembly) -> Staged:
    """Return the whole in staging. Raises InvalidError when it is not what was declared."""
    pieces = assembly.pieces
    if not pieces:
        raise PermanentError("the upload has no parts", code="part_missing")
    if len(pieces) == 1:
        key, sha256 = pieces[0].staging_key, pieces[0].sha256
        demand_sha256(assembly.sha256, sha256)
    else:
        whole = _join(execution, deps, assembly)
        execution.emit("joined", {"parts_sent": whole.parts_sent, "parts_kept": whole.parts_kept})
        key, sha256 = whole.key, whole.sha256
    return Staged(
        key=key,
        size=assembly.size,
        sha256=sha256,
        etag=multipart_etag([piece.md5 for piece in pieces]),
        content_type=assembly.content_type,
        metadata=assembly.metadata,
        lifetime=assembly.lifetime,
    )


def _join(execution: Execution, deps: Deps, assembly: Assembly) -> Joined:
    """Join the parts, from where an earlier execution was cut short."""
    saved = execution.task.checkpoint
    resume = JoinProgress.from_json(saved) if saved else None
    if resume is not None:
        execution.emit("resumed", {"bytes_done": resume.bytes_done})
    told = 0

    def save(progress: JoinProgress) -> None:
        nonlocal told
        execution.checkpoint(progress.to_json(), progress.bytes_done)
        if progress.bytes_done - told >= TELL_BYTES:
            told = progress.bytes_done
            execution.emit("assembled", {"bytes_done": told})

    return join(
        deps.staging,
        assembly.pieces,
        sha256=assembly.sha256,
        resume=resume,
        save=save,
        check=execution.check,
        deadline=execution.deadline,
        part_bytes=deps.join_part_bytes,
    )


def _commit(execution: Execution, deps: Deps, assembly: Assembly, staged: Staged) -> Assembled:
    """Make the version, give the session its result and end the task, in one transaction."""
    task = execution.task
    commit = AssemblyCommit(
        deps.catalogue, assembly, staged, task_id=task.id, trace_parent=task.trace_parent
    )

    def write(tx: Completion) -> Assembled:
        done = commit.apply(tx.session)
        tx.result = {
            "version_id": done.answer.version_id,
            "task_id": done.answer.task_id,
            "parts": len(assembly.pieces),
            "size": assembly.size,
        }
        return done

    failpoint("assemble.before_commit")
    return fenced.complete(execution, deps.db, lock=commit.lock, body=write)


def _remove(deps: Deps, keys: Sequence[str]) -> None:
    """Remove files that nobody names; the cleanup finds what is left."""
    deadline = Deadline(TIDY_SECONDS + TIDY_SECONDS_PER_FILE * len(keys))
    for done, key in enumerate(keys):
        try:
            deps.staging.remove(key, deadline=deadline)
        except Exception as error:
            _log.info("staging_left_to_cleanup", files=len(keys) - done, error=str(error))
            return
