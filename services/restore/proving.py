"""Whether a copy on a channel is what it should be: its bytes say so, or the channel does not."""

from __future__ import annotations

from services.restore.deps import Deps
from shared.outbox import Execution
from shared.storage.errors import ChannelError, ChecksumMismatch, ObjectMissing
from shared.storage.registry import OpenChannel
from shared.storage.verify import verify


def is_right(
    execution: Execution, deps: Deps, opened: OpenChannel, key: str, *, size: int, sha256: str
) -> bool:
    """Tell whether an object is there, of this size in bytes and with this SHA-256.

    Raises ChannelError when the channel does not say, ResourceBusy when it does not answer and has
    its share of the threads.
    """
    try:
        with deps.slots.reading(execution, opened):
            verify(
                opened,
                key,
                size=size,
                sha256=sha256,
                check=execution.check,
                deadline=execution.deadline,
            )
    except (ObjectMissing, ChecksumMismatch):
        return False
    except ChannelError as error:
        if error.code == "short_read":
            return False
        raise
    return True
