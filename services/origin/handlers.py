"""Fills an absent key: a source of its bucket's rule → staging → the commit that makes a version.

The loop over sources is here, one try of one source in `trying`, the choice in `rules`.
"""

from __future__ import annotations

import random

from services.origin import rules
from services.origin.deps import Deps, Pull
from services.origin.hosts import HostBusy
from services.origin.receiving import remove
from services.origin.rules import Candidate, Plan
from services.origin.trying import StagingTrouble, commit, try_source
from shared.catalog.origins.commit import read_pull
from shared.catalog.origins.slots import resource_of
from shared.catalog.payloads import PullOrigin
from shared.core.errors import CancelRequested, ResourceBusy
from shared.core.failpoints import failpoint
from shared.core.outcomes import Fail, Retry, Snooze
from shared.fetch import FetchRefused, parse_url
from shared.outbox import Execution

__all__ = ["Deps", "pull"]

#: Seconds until staging is looked at again that was full or away.
STAGING_SECONDS = 30.0
#: What a full host counts for beside one that is left alone for a while.
FULL_SECONDS = 1.0
#: A pull that could not go on for so long has failed: nobody waits for it any more.
GIVE_UP_SECONDS = 3600.0


def pull(execution: Execution, payload: PullOrigin, deps: Deps) -> Retry | Snooze | Fail | None:
    """Fetch one absent key and make a version of it, as a PUT would.

    Completes the task in the commit that makes the version, or that finds the key written
    meanwhile. Fails for good when the origin does not have it or will not give it, or when every
    source has used its tries; waits uncounted while hosts are left alone or staging is full.
    """
    failpoint("origin.claimed")
    task = execution.task
    job = deps.db.run_session(
        lambda session: read_pull(session, payload.pull_id, task_id=task.id), read_only=True
    )
    if job is None:
        return None
    run = Pull(execution, deps, job, Plan.load(task.checkpoint, attempt=task.attempt))
    if job.is_lost:
        remove(run, commit(run, None).released)
        return None
    try:
        answer = _go(run)
    except CancelRequested:
        _drop(run)
        raise
    if isinstance(answer, Fail):
        _drop(run)
    return answer


def _go(run: Pull) -> Retry | Snooze | Fail | None:
    while True:
        run.execution.check()
        choice = rules.choose(
            [_candidate(run, number) for number in range(len(run.job.rule.sources))],
            run.plan,
            failed_now=set(run.failed_now),
            tries_per_source=run.job.rule.tries,
        )
        if not isinstance(choice, rules.Use):
            return _give_up(run, choice)
        try:
            outcome = try_source(run, choice.source)
        except HostBusy as error:
            return _wait(run, error.retry_after_seconds, "the host is busy", choice.source)
        except ResourceBusy as error:
            run.full[choice.source] = error
        except StagingTrouble as error:
            return _wait(run, STAGING_SECONDS, str(error))
        else:
            if isinstance(outcome, Fail):
                return outcome
            if outcome:
                return None


def _candidate(run: Pull, number: int) -> Candidate:
    try:
        target = parse_url(run.job.rule.url(number, run.job.key))
    except FetchRefused:
        return Candidate(number)  # The try says so, and bars it.
    if number in run.full:
        return Candidate(number, max(FULL_SECONDS, run.full[number].after_seconds))
    return Candidate(number, run.deps.hosts.opens_in_seconds(run.job.bucket_id, target))


def _give_up(run: Pull, choice: rules.Choice) -> Retry | Snooze | Fail:
    """Answer for an execution that brought nothing."""
    match choice:
        case rules.WaitForHost(source=source, seconds=seconds):
            if source in run.full:
                busy = run.full[source]
                if busy.after_seconds and run.job.age_seconds > GIVE_UP_SECONDS:
                    return Fail("origin_unavailable", str(busy))
                return Snooze(busy.after_seconds, str(busy), resource=busy.resource)
            return _wait(run, seconds, "the host is left alone", source)
        case rules.TryLater():
            waits = [run.patience.get(number, 0.0) for number in run.failed_now]
            return Retry(after_seconds=min(waits, default=0.0) or None, reason=_reasons(run))
        case _:
            run.keep(run.plan.spent())
            return Fail("origins_spent", f"every source has used its tries: {_reasons(run)}")


def _wait(run: Pull, seconds: float, reason: str, source: int | None = None) -> Snooze | Fail:
    """Come back uncounted, parked on the host of a source when that is what it waits for."""
    if run.job.age_seconds > GIVE_UP_SECONDS:
        return Fail("origin_unavailable", reason)
    # Spread, so that a host that is well again is not met by all at once.
    seconds += random.uniform(0.1, 1.0)
    if source is None:
        return Snooze(seconds, reason)
    target = parse_url(run.job.rule.url(source, run.job.key))
    return Snooze(seconds, reason, resource=resource_of(run.job.bucket_id, target))


def _drop(run: Pull) -> None:
    """Remove what had come; the hook of the end lets its rows go."""
    remove(run, tuple(segment.staging_key for segment in run.job.segments))


def _reasons(run: Pull) -> str:
    return "; ".join(f"source {number}: {why}" for number, why in sorted(run.failed_now.items()))
