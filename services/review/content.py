"""The bytes of a version under review: from staging, or of stored content from a channel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from services.review.deps import Deps
from shared.catalog.payloads import CheckReview
from shared.catalog.rereviews.rechecking import read_recheck
from shared.catalog.review_cases import Case, read_case
from shared.core.errors import PermanentError, TransientError
from shared.outbox import Execution
from shared.storage.bandwidth import TokenBucket, wait_turn
from shared.storage.errors import SourceError, SourceUnavailable
from shared.storage.source import ChannelSource


@contextmanager
def open_content(execution: Execution, case: Case, deps: Deps) -> Iterator[Iterator[bytes]]:
    """Read the content from its beginning, at the first place that has it.

    Raises SourceUnavailable when it cannot be read now, SupersededError when it is gone because
    the version is over, SourceError when it is gone and should not be.
    """
    try:
        with ExitStack() as stack:
            content, limit = _open(stack, execution, case, deps)
            yield content if limit is None else _slowly(content, limit, execution)
    except SourceError:
        # Gone because the version is over, or moved meanwhile? Then that is how the task ends.
        payload = CheckReview(version_id=case.version_id, blob_id=0, review_id=case.review_id)
        read = read_recheck if case.is_again else read_case
        now = deps.db.run_session(lambda session: read(session, payload), read_only=True)
        if now is not None and (now.staging_key, now.places) != (case.staging_key, case.places):
            raise TransientError("the bytes have moved", version_id=case.version_id) from None
        raise


def _slowly(content: Iterator[bytes], limit: TokenBucket, execution: Execution) -> Iterator[bytes]:
    """Read no faster than the channel's bandwidth limit allows, over all who read it."""
    for chunk in content:
        yield chunk
        wait_turn(limit, len(chunk), execution.wait)


def _open(
    stack: ExitStack, execution: Execution, case: Case, deps: Deps
) -> tuple[Iterator[bytes], TokenBucket | None]:
    """Open the first place that has the bytes."""
    failure: SourceError | SourceUnavailable | None = None
    for source, limit in _sources(case, deps):
        opening = source.open(0, case.size_bytes, execution.deadline)
        try:
            return stack.enter_context(opening), limit
        except (SourceError, SourceUnavailable) as error:
            failure = error
    if failure is not None:
        raise failure
    raise SourceUnavailable("no channel can be read now", version_id=case.version_id)


def _sources(case: Case, deps: Deps) -> Iterator[tuple[ChannelSource, TokenBucket | None]]:
    if case.staging_key is not None:
        yield ChannelSource(deps.staging, case.staging_key), None
        return
    if not case.places:
        raise PermanentError(
            "the version's bytes are nowhere", code="staging_missing", version_id=case.version_id
        )
    for channel, key in case.places:
        found = None if deps.channels is None else deps.channels.find(channel)
        if found is not None:
            yield ChannelSource(found[0].channel, key), found[0].download_limit
