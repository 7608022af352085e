"""One try of one source: count it, ask, take in the body, commit.

Failpoints name the protocol's steps. Between any two of them the process may die: what is left is
then a file that no row names, or a stretch that the next execution goes on behind.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import structlog

from services.origin import rules
from services.origin.deps import Pull
from services.origin.hosts import BUSY_SECONDS, Asking, BadAnswer, HostBusy
from services.origin.receiving import forget_partial, receive, remove
from shared.catalog import fenced
from shared.catalog.limits import DEFAULT_CONTENT_TYPE, check_content_type
from shared.catalog.models import PullState
from shared.catalog.origins.commit import PullCommit, Pulled
from shared.catalog.origins.slots import resource_of
from shared.catalog.puts import Staged
from shared.core.errors import (
    CancelRequested,
    InvalidError,
    RequestError,
    ResourceBusy,
    SupersededError,
    TransientError,
    UnavailableError,
)
from shared.core.failpoints import failpoint
from shared.core.outcomes import Fail
from shared.fetch import (
    Answer,
    FetchError,
    FetchRefused,
    FetchTooLarge,
    Hop,
    ResolverBusy,
    Target,
    parse_url,
)
from shared.outbox.completion import Completion
from shared.storage import staging_writer
from shared.storage.errors import ChannelError
from shared.storage.staging_parts import StagingBusy

#: Tries of the last transaction: what has come is not fetched again for a busy database.
COMMIT_TRIES = 5

_log = structlog.get_logger("origin")


class StagingTrouble(TransientError):
    """Staging takes nothing at the moment."""

    code = "staging_unavailable"


def try_source(pull: Pull, source: int) -> Fail | bool:
    """Ask one source; True when the pull is over, False when it failed and is counted.

    Raises HostBusy, ResourceBusy and, when staging takes nothing, StagingTrouble: uncounted.
    """
    url = pull.job.rule.url(source, pull.job.key)
    before = pull.plan.tries
    try:
        target = parse_url(url)
        with _place(pull, target), pull.deps.hosts.use(pull.job.bucket_id, target) as asking:
            pull.keep(pull.plan.begun(source))
            failpoint("origin.after_count")
            return _ask(pull, source, url, asking)
    except HostBusy:
        raise
    except ResourceBusy:
        if pull.plan.tries != before:
            pull.keep(pull.plan.uncounted(source))
        raise
    except (ChannelError, StagingBusy) as error:
        pull.keep(pull.plan.uncounted(source))
        raise StagingTrouble(str(error)) from error
    except ResolverBusy as error:
        pull.keep(pull.plan.uncounted(source))
        raise HostBusy(retry_after_seconds=BUSY_SECONDS) from error
    except FetchTooLarge as error:
        return Fail(error.code, str(error))
    except FetchRefused as error:
        # Our own rules forbid it; another source may still be one to which we go.
        _note(pull, source, error.code, str(error))
        _alarm(pull, source, error.code)
        pull.keep(pull.plan.without(source))
    except FetchError as error:
        _note(pull, source, error.code, str(error))
    return False


@contextmanager
def _place(pull: Pull, target: Target) -> Iterator[None]:
    """Hold one of the places that the bucket has at a host in the block."""
    deps = pull.deps
    if deps.resources is None:
        yield
        return
    with deps.resources.hold(
        pull.execution,
        resource_of(pull.job.bucket_id, target),
        limit=deps.max_running,
        is_well=lambda: deps.hosts.opens_in_seconds(pull.job.bucket_id, target) <= 0,
    ):
        yield


def _ask(pull: Pull, source: int, url: str, asking: Asking) -> Fail | bool:
    execution, job = pull.execution, pull.job
    partial = pull.plan.partial
    if partial is not None and (partial.source != source or not job.segments):
        forget_partial(pull)
        partial = None
    start = sum(segment.size for segment in pull.job.segments)
    headers = job.rule.sources[source].headers(pull.deps.secrets)
    if partial is not None:
        headers |= {"range": f"bytes={start}-", "if-range": partial.etag}

    def check() -> None:
        execution.check()
        asking.check()

    with (
        asking.waiting(),
        pull.deps.fetcher.open(
            "GET",
            url,
            headers=headers,
            limits=replace(pull.deps.limits, max_body_bytes=_room(pull, start)),
            deadline=execution.deadline.within(job.rule.max_seconds),
            check=check,
        ) as answer,
    ):
        asking.answered()
        failpoint("origin.after_head")
        meaning = rules.judge(answer.status, answer.headers, partial=partial, start=start)
        if meaning in ("store", "append"):
            encoding = answer.headers.get("content-encoding", "identity").strip().lower()
            if encoding not in ("", "identity"):
                # Never unpacked; and packed bytes would be served as if they were the content.
                return Fail(
                    "origin_encoding", f"the origin packs what was asked for plain: {encoding}"
                )
            if meaning == "append":
                execution.emit("resumed", {"source": source, "bytes_done": start})
            elif partial is not None:
                forget_partial(pull)
            staged, hops = receive(pull, source, answer, asking.came), answer.hops
            content_type = _content_type(answer)
        else:
            return _refused(pull, source, answer, meaning)
    return _store(pull, staged, content_type, hops)


def _refused(pull: Pull, source: int, answer: Answer, meaning: rules.Meaning) -> Fail | bool:
    """Carry out what an answer without the bytes means."""
    status, detail = answer.status, f"the origin answered {answer.status}"
    if meaning == "missing":
        return Fail("origin_missing", detail)
    if meaning == "denied":
        _alarm(pull, source, "origin_denied")
        return Fail("origin_denied", detail)
    if meaning == "error":
        return Fail("origin_status", detail)
    if meaning == "restart":
        forget_partial(pull)
        return False
    if meaning == "busy":
        seconds = rules.patience_seconds(answer.headers, now=time.time())
        pull.patience[source] = 0.0 if seconds is None else seconds
        _note(pull, source, "origin_busy", detail)
        return False
    raise BadAnswer(detail, status=status)


def _room(pull: Pull, start: int) -> int | None:
    limits = [most for most in (pull.job.max_bytes, pull.deps.max_bytes) if most is not None]
    return max(0, min(limits) - start) if limits else None


def _content_type(answer: Answer) -> str:
    try:
        return check_content_type(answer.headers.get("content-type"))
    except InvalidError:
        return DEFAULT_CONTENT_TYPE


def _store(
    pull: Pull, staged: staging_writer.Staged, content_type: str, hops: tuple[Hop, ...]
) -> Fail | bool:
    body = Staged(
        key=staged.key,
        size=staged.size,
        sha256=staged.sha256,
        etag=staged.md5,
        content_type=content_type,
    )
    try:
        done = commit(pull, body, hops)
    except RequestError as error:
        remove(pull, (staged.key,))
        return Fail(error.code, str(error))
    except (UnavailableError, SupersededError, CancelRequested):
        # Certain that nothing was committed; the next try makes a file of its own.
        remove(pull, (staged.key,))
        raise
    failpoint("origin.after_commit")
    remove(pull, done.released)
    failpoint("origin.after_release")
    return True


def commit(pull: Pull, body: Staged | None, hops: tuple[Hop, ...] = ()) -> Pulled:
    """Make the version and end pull and task, in one fenced transaction; or end it as lost."""
    for left in range(COMMIT_TRIES - 1, -1, -1):
        once = PullCommit(
            pull.deps.catalogue,
            pull.job,
            body,
            hops=hops,
            trace_parent=pull.execution.task.trace_parent,
        )

        def write(tx: Completion, once: PullCommit = once) -> Pulled:
            done = once.apply(tx.session)
            tx.result = {
                "outcome": str(done.state),
                "version_id": None if done.answer is None else done.answer.version_id,
                "size": 0 if body is None else body.size,
            }
            return done

        failpoint("origin.before_commit")
        try:
            done = fenced.complete(pull.execution, pull.deps.db, lock=once.lock, body=write)
        except UnavailableError:
            if left == 0:
                raise
            pull.execution.wait(0.2)
            continue
        if done.state == PullState.LOST:
            _log.info("origin_pull_lost", pull_id=pull.job.pull_id)
        return done
    raise AssertionError("unreachable")


def _note(pull: Pull, source: int, code: str, reason: str) -> None:
    pull.failed_now[source] = reason
    facts = {"source": source, "code": code, "tries": pull.plan.tries.get(source, 0)}
    _log.warning("origin_failed", pull_id=pull.job.pull_id, error=reason, **facts)
    pull.execution.emit("origin_failed", {**facts, "error": reason[:500]})


def _alarm(pull: Pull, source: int, code: str) -> None:
    """Say aloud that a rule cannot work as it stands: somebody has to change it."""
    _log.error(
        "origin_rule_needs_attention",
        pull_id=pull.job.pull_id,
        bucket_id=pull.job.bucket_id,
        tenant_id=pull.execution.task.tenant_id,
        source=source,
        code=code,
    )
    pull.execution.emit("alarm", {"source": source, "code": code})
