"""A body on its way into staging, in one file, or in stretches that outlive a broken connection.

Stretches are only made of large answers with a strong ETag: nothing else could be gone on from.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from services.origin.deps import Pull
from services.origin.rules import Partial, range_bytes, strong_etag
from shared.catalog import fenced
from shared.catalog.origins.segments import Segment, add_segment, drop_segments
from shared.core.clock import Deadline
from shared.core.errors import ResourceBusy, TransientError
from shared.core.failpoints import failpoint
from shared.fetch import Answer, FetchUnavailable
from shared.storage.errors import SourceError
from shared.storage.source import ChannelSource
from shared.storage.staging_writer import Staged, StagingWriter

#: Seconds for removing files whose time is over; failing is harmless.
TIDY_SECONDS = 10.0

_log = structlog.get_logger("origin")


def receive(pull: Pull, source: int, answer: Answer, came: Callable[[int], None]) -> Staged:
    """Return the whole body, durable in staging; goes on behind the kept stretches of the pull.

    `came` is told of each chunk's bytes. Raises the errors of `Answer.chunks`, ChannelFull and
    TooLargeError. When the connection breaks, or has to be given up, what has come of a body that
    can be gone on from is kept.
    """
    etag = strong_etag(answer.headers)
    had = sum(segment.size for segment in pull.job.segments)
    length = answer.length
    is_long = length is None or had + length > pull.deps.segment_bytes
    if not had and (etag is None or not is_long):
        return _in_one(pull, answer, came)
    assert etag is not None
    if pull.plan.partial is None:
        pull.keep(pull.plan.with_partial(Partial(source, etag, length)))
    last = _in_stretches(pull, answer, came)
    if not pull.job.segments:
        return last
    return _joined(pull, last)


def forget_partial(pull: Pull) -> None:
    """Give up what has come: the next answer begins at the start."""
    dropped = fenced.fenced(
        pull.execution,
        pull.deps.db,
        lock=fenced.no_lock,
        body=lambda session: drop_segments(session, pull.job.pull_id),
    )
    pull.take_segments(())
    pull.keep(pull.plan.with_partial(None))
    remove(pull, dropped)


def remove(pull: Pull, keys: tuple[str, ...]) -> None:
    """Remove staging files that no row names; the cleanup finds what is left."""
    deadline = Deadline(TIDY_SECONDS)
    for key in keys:
        try:
            pull.deps.staging.remove(key, deadline=deadline)
        except Exception as error:
            _log.info("staging_left_to_cleanup", key=key, error=str(error))


def _in_one(pull: Pull, answer: Answer, came: Callable[[int], None]) -> Staged:
    with _writer(pull, answer.length) as writer:
        for chunk in answer.chunks():
            came(len(chunk))
            writer.write(chunk)
        staged = writer.finish()
    failpoint("origin.after_bytes")
    return staged


def _in_stretches(pull: Pull, answer: Answer, came: Callable[[int], None]) -> Staged:
    """Keep full stretches as they come; returns the last one, which no row names yet."""
    writer = _writer(pull, None)
    # An answer without a length, or with another one, must still bring the range that it names.
    left = range_bytes(answer.headers) if answer.status == 206 else None
    try:
        for chunk in answer.chunks():
            came(len(chunk))
            left = None if left is None else left - len(chunk)
            if writer.written_bytes >= pull.deps.segment_bytes:
                _keep(pull, writer.finish())
                writer = _writer(pull, None)
            writer.write(chunk)
        if left:
            raise FetchUnavailable("the range ended elsewhere", code="body_short", missing=left)
        staged = writer.finish()
    except (FetchUnavailable, ResourceBusy):
        if writer.written_bytes >= pull.deps.least_segment_bytes:
            _keep(pull, writer.finish())
        raise
    finally:
        writer.abort()
    failpoint("origin.after_bytes")
    return staged


def _keep(pull: Pull, staged: Staged) -> None:
    segment = Segment(len(pull.job.segments), staged.key, staged.size)
    failpoint("origin.before_segment")
    fenced.fenced(
        pull.execution,
        pull.deps.db,
        lock=fenced.no_lock,
        body=lambda session: add_segment(session, pull.job.pull_id, segment),
    )
    pull.take_segments((*pull.job.segments, segment))
    pull.keep(pull.plan)
    pull.execution.emit("part", {"bytes_done": sum(one.size for one in pull.job.segments)})
    failpoint("origin.after_segment")


def _joined(pull: Pull, last: Staged) -> Staged:
    """Copy the stretches into one file, in order; its hash is that of all of them."""
    pieces = [(one.staging_key, one.size) for one in pull.job.segments] + [(last.key, last.size)]
    total = sum(size for _, size in pieces)
    try:
        with _writer(pull, total) as writer:
            for key, size in pieces:
                source = ChannelSource(pull.deps.staging, key)
                with source.open(0, size, pull.execution.deadline) as chunks:
                    for chunk in chunks:
                        writer.write(chunk)
                        pull.execution.check()
            staged = writer.finish()
    except SourceError as error:
        forget_partial(pull)
        raise TransientError("what had come is gone", code="partial_gone") from error
    finally:
        remove(pull, (last.key,))
    failpoint("origin.after_join")
    return staged


def _writer(pull: Pull, size: int | None) -> StagingWriter:
    return pull.deps.staging.writer(declared_size=size, reserve_bytes=pull.deps.reserve_bytes)
