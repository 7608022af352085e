"""Stores acknowledged bytes: staging → a storage channel → the one commit that makes them current.

The loop over channels is here, one try of one channel in `trying`, the choice in `rules`.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.upload import rules
from services.upload.rules import Candidate, Plan
from services.upload.trying import Deps, Upload, keep, try_channel
from shared.catalog.channel_slots import resource_of
from shared.catalog.payloads import StoreUpload
from shared.catalog.store import read_job
from shared.core.errors import ResourceBusy
from shared.core.failpoints import failpoint
from shared.core.outcomes import Fail, Retry, Snooze
from shared.outbox import Execution

__all__ = ["Deps", "store"]

#: Seconds between two looks whether an operator has switched a channel on again.
OPERATOR_WAIT_SECONDS = 30.0
#: A version that no channel would take for a day has failed; its bytes stay in staging.
GIVE_UP_SECONDS = 24 * 3600.0


def store(execution: Execution, payload: StoreUpload, deps: Deps) -> Retry | Snooze | Fail | None:
    """Store one version's bytes, on the first of its bucket's channels that takes them.

    Completes the task in the commit that makes the version current. Ends superseded when a newer
    version won, is parked uncounted while only full channels or open breakers are left, fails when
    every channel has used its tries: the bytes then stay in staging, readable, for a manual retry.
    """
    failpoint("upload.claimed")
    job = deps.db.run_session(lambda session: read_job(session, payload.version_id), read_only=True)
    if job is None:
        return None
    task = execution.task
    upload = Upload(execution, deps, job, Plan.load(task.checkpoint, attempt=task.attempt))
    while True:
        execution.check()
        choice = rules.choose(
            _candidates(upload),
            upload.plan,
            failed_now=set(upload.failed_now),
            tries_per_channel=deps.tries_per_channel,
        )
        if not isinstance(choice, rules.Use):
            return _give_up(upload, choice)
        found = deps.channels.find(choice.channel)
        if found is None:
            upload.failed_now[choice.channel] = "the channel is gone"
            continue
        try:
            with deps.slots.hold(execution, found[0]):
                if try_channel(upload, found[0]):
                    return None
        except ResourceBusy as busy:
            upload.busy[choice.channel] = busy
            _uncount(upload, choice.channel)


def _uncount(upload: Upload, channel: str) -> None:
    """Take back a try that had to make room before anything of it had arrived."""
    current = upload.plan.current
    if current is not None and current.channel == channel and current.progress is None:
        keep(upload, upload.plan.uncounted())


def _candidates(upload: Upload) -> Sequence[Candidate]:
    candidates = []
    for name in upload.job.channels:
        found = upload.deps.channels.find(name)
        if found is None:
            candidates.append(Candidate(name, is_enabled=False))
            continue
        opened, is_enabled = found
        candidates.append(
            Candidate(
                name,
                is_enabled=is_enabled,
                is_ready=opened.ready(),
                is_full=name in upload.busy,
                opens_in_seconds=opened.retry_after_seconds(),
            )
        )
    return candidates


def _give_up(upload: Upload, choice: rules.Choice) -> Retry | Snooze | Fail:
    """Answer for an execution that no channel took the bytes of."""
    reasons = "; ".join(f"{name}: {reason}" for name, reason in upload.failed_now.items())
    match choice:
        case rules.WaitForPlace(channel=channel):
            busy = upload.busy[channel]
            return Snooze(busy.after_seconds, str(busy), resource=busy.resource)
        case rules.WaitForBreaker(channel=channel, seconds=seconds):
            wait = upload.deps.slots.broken(channel, seconds)
            return Snooze(wait, "breakers are open", resource=resource_of(channel))
        case rules.WaitForOperator():
            if upload.job.age_seconds > GIVE_UP_SECONDS:
                return Fail("no_channel", "no channel of the bucket is enabled")
            return Snooze(OPERATOR_WAIT_SECONDS, reason="no channel of the bucket is enabled")
        case rules.TryLater():
            return Retry(reason=reasons)
        case _:
            keep(upload, upload.plan.spent())
            return Fail("channels_spent", f"every channel has used its tries: {reasons}")
