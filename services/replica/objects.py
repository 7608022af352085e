"""Copies and moves over channels: the bytes to a channel of the target's bucket, then the name.

The target's channels are tried in their order; where the content stands on one already, there is
nothing to send.
"""

from __future__ import annotations

import structlog

from services.replica.handlers import Deps, copying
from shared.catalog import fenced
from shared.catalog.channel_slots import resource_of
from shared.catalog.copying import Copied, CopyCommit, CopyJob, copy_blob, read_sources
from shared.catalog.object_copies import CopyFacts, ObjectCopyCommit, read_copy
from shared.catalog.payloads import CopyObject
from shared.core.errors import ResourceBusy
from shared.core.failpoints import failpoint
from shared.core.outcomes import Fail, Snooze
from shared.outbox import Execution
from shared.outbox.completion import Completion
from shared.storage.errors import ChannelError, ChannelUnavailable

#: Seconds between two looks whether an operator has switched a channel on again.
OPERATOR_WAIT_SECONDS = 60.0

_log = structlog.get_logger("replica")


def copy_object(execution: Execution, payload: CopyObject, deps: Deps) -> Snooze | Fail | None:
    """Bring one copy's bytes to the first of its channels that takes them, and commit the copy.

    Ends superseded when the target was written or the moved source changed meanwhile. Waits
    uncounted while its channels are full, left alone or switched off.
    """
    failpoint("object.claimed")
    facts = deps.db.run_session(lambda session: read_copy(session, payload.copy_id), read_only=True)
    if facts is None:
        return None
    if facts.is_placed:
        _commit(execution, deps, facts, None)
        return None
    waits: list[Snooze] = []
    failures: list[ChannelError] = []
    for channel in facts.channels:
        execution.check()
        try:
            answer = _bring(execution, deps, facts, channel)
        except ResourceBusy as busy:
            waits.append(Snooze(busy.after_seconds, str(busy), resource=busy.resource))
        except ChannelError as error:
            failures.append(error)
        else:
            if answer is None:
                return None
            waits.append(answer)
    if failures:
        raise failures[-1]
    if not waits:
        return Fail("no_channel", "the target's bucket names no channel")
    return min(waits, key=lambda wait: (wait.resource is None, wait.after_seconds))


def _bring(execution: Execution, deps: Deps, facts: CopyFacts, channel: str) -> Snooze | None:
    """Copy to one channel and commit; a Snooze when it takes nothing now."""
    found = deps.channels.find(channel)
    if found is None:
        raise ChannelUnavailable("the channel is gone", channel=channel)
    opened, is_enabled = found
    if not is_enabled:
        return Snooze(OPERATOR_WAIT_SECONDS, f"channel {channel} is switched off")
    if not opened.ready():
        seconds = opened.retry_after_seconds()
        return Snooze(seconds, "the breaker is open", resource=resource_of(channel))
    sources = deps.db.run_session(
        lambda session: read_sources(session, facts.blob_id, without=channel), read_only=True
    )
    job = CopyJob(facts.blob_id, facts.size_bytes, facts.sha256, sources, channel)
    with deps.use(execution, found):
        answer = copy_blob(execution, copying(deps, points="object"), job)
        if isinstance(answer, Snooze):
            return answer
        _commit(execution, deps, facts, CopyCommit(job, answer), answer)
    return None


def _commit(
    execution: Execution,
    deps: Deps,
    facts: CopyFacts,
    placed: CopyCommit | None,
    copied: Copied | None = None,
) -> None:
    commit = ObjectCopyCommit(
        deps.catalogue, copy_id=facts.copy_id, task_id=execution.task.id, placed=placed
    )

    def write(tx: Completion) -> None:
        answer = commit.apply(tx.session)
        tx.result = {
            "version_id": answer.version_id,
            "bytes_sent": 0 if copied is None else copied.bytes_sent,
            "method": "none" if copied is None else copied.method,
        }

    failpoint("object.before_commit")
    fenced.complete(execution, deps.db, lock=commit.lock, body=write)
    failpoint("object.after_commit")
    if commit.released:
        # A move may end a version whose file in staging nobody needs: the clean-up takes it.
        _log.info("staging_left_to_cleanup", keys=list(commit.released))
