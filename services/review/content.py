"""The bytes of a version under review: from staging, or of stored content from a channel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from services.review.deps import Deps
from shared.catalog.payloads import CheckReview
from shared.catalog.reviewing import Case, read_case
from shared.core.errors import PermanentError
from shared.outbox import Execution
from shared.storage.errors import SourceError
from shared.storage.source import ChannelSource


@contextmanager
def open_content(execution: Execution, case: Case, deps: Deps) -> Iterator[Iterator[bytes]]:
    """Read the content from its beginning.

    Raises SourceUnavailable when it cannot be read now, SupersededError when it is gone because
    the version is over, SourceError when it is gone and should not be.
    """
    if case.staging_key is None:
        raise PermanentError(
            "the version names no staging file", code="staging_missing", version_id=case.version_id
        )
    source = ChannelSource(deps.staging, case.staging_key)
    try:
        with source.open(0, case.size_bytes, execution.deadline) as content:
            yield content
    except SourceError:
        # Gone because the version was superseded meanwhile? Then that is how the task ends.
        payload = CheckReview(version_id=case.version_id, blob_id=0, review_id=case.review_id)
        deps.db.run_session(lambda session: read_case(session, payload), read_only=True)
        raise
