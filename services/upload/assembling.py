"""Joins the parts of a resumable upload: parts → one staging file → the commit of its version.

The copy begins anew when it is cut short: what a dead process leaves lies outside of all keys, or
is a file that nobody names, and both are swept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import structlog

from services.upload.trying import Deps
from shared.catalog import fenced
from shared.catalog.payloads import AssembleUpload
from shared.catalog.puts import Staged
from shared.catalog.uploading.assembly import (
    Assembled,
    Assembly,
    AssemblyCommit,
    Piece,
    read_assembly,
)
from shared.catalog.uploading.rules import multipart_etag
from shared.core.clock import Deadline
from shared.core.errors import (
    CancelRequested,
    CorruptError,
    InvalidError,
    PermanentError,
    RequestError,
    SupersededError,
    UnavailableError,
)
from shared.core.failpoints import failpoint
from shared.core.outcomes import Fail
from shared.outbox import Execution
from shared.outbox.completion import Completion
from shared.storage.errors import SourceError
from shared.storage.source import ChannelSource

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
        _drop(deps, assembly, staged)
        return Fail(error.code, str(error))
    except (UnavailableError, SupersededError, CancelRequested):
        # Certain that nothing was committed; the next try makes a file of its own.
        _drop(deps, assembly, staged)
        raise
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
        _demand_sha256(assembly, sha256)
    else:
        writer = deps.staging.writer(declared_size=assembly.size, sha256=assembly.sha256)
        with writer:
            told = 0
            for piece in pieces:
                for chunk in _read(execution, deps, piece):
                    writer.write(chunk)
                    execution.check()
                failpoint("assemble.after_part")
                if writer.written_bytes - told >= TELL_BYTES:
                    told = writer.written_bytes
                    execution.emit("assembled", {"part": piece.number, "bytes_done": told})
            whole = writer.finish()
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


def _read(execution: Execution, deps: Deps, piece: Piece) -> Iterator[bytes]:
    """Yield a part's bytes; CorruptError at their end when they are not those that were sent."""
    digest, size = hashlib.sha256(), 0
    source = ChannelSource(deps.staging, piece.staging_key)
    with source.open(0, piece.size, execution.deadline) as chunks:
        for chunk in chunks:
            digest.update(chunk)
            size += len(chunk)
            yield chunk
    if size != piece.size or digest.hexdigest() != piece.sha256:
        raise CorruptError(
            "a part in staging is not what was sent", code="part_corrupt", part=piece.number
        )


def _demand_sha256(assembly: Assembly, actual: str) -> None:
    if assembly.sha256 is not None and assembly.sha256 != actual:
        raise InvalidError(
            "the body has another sha256 than declared",
            code="sha256_mismatch",
            expected=assembly.sha256,
            actual=actual,
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


def _drop(deps: Deps, assembly: Assembly, staged: Staged) -> None:
    """Remove a joined file that no row names; a part is still the session's."""
    if len(assembly.pieces) > 1:
        _remove(deps, [staged.key])


def _remove(deps: Deps, keys: Sequence[str]) -> None:
    """Remove files that nobody names; the cleanup finds what is left."""
    deadline = Deadline(TIDY_SECONDS + TIDY_SECONDS_PER_FILE * len(keys))
    for done, key in enumerate(keys):
        try:
            deps.staging.remove(key, deadline=deadline)
        except Exception as error:
            _log.info("staging_left_to_cleanup", files=len(keys) - done, error=str(error))
            return
