"""How a queue service consumes: started, watched, drained. The same for every queue."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from shared.core.errors import UnavailableError
from shared.outbox.nodes import live_nodes
from shared.outbox.outbox import Outbox
from shared.runtime.assembly import Parts
from shared.runtime.process import Process
from shared.runtime.service import Running, run_service
from shared.runtime.settings import Settings
from shared.runtime.shutdown import Stage

#: Share of the shutdown in which executions end, or are interrupted and given back.
_DRAIN_SHARE = 0.75

_log = structlog.get_logger("worker")

#: Attaches the handlers of one queue to `parts.outbox`.
Register = Callable[[Parts], object]


def run_worker(queue: str, register: Register) -> int:
    """Run the service of one queue until a signal; returns the exit code of the process."""

    def start(process: Process, parts: Parts) -> Running:
        register(parts)
        parts.outbox.start_worker(
            [queue],
            regions=process.settings.consumed_regions,
            threads=process.settings.worker.threads,
        )
        _warn_without_base(process, parts, queue)
        watch_worker(process, parts.outbox)
        return Running(stages=(Stage("executions", _DRAIN_SHARE, parts.outbox.drain),))

    return run_service(queue, start, needs_redis=True, threads=_threads)


def watch_worker(process: Process, outbox: Outbox) -> None:
    """Put the worker into the probes and the metrics."""

    def live() -> str | None:
        return "; ".join(outbox.health().faults) or None

    def ready() -> str | None:
        return "; ".join(outbox.health().missing) or None

    process.health.add_live("outbox", live)
    process.health.add_ready("outbox", ready)
    worker = outbox.worker
    if worker is None:
        return
    process.metrics.show("worker_threads", "Threads that run handlers", lambda: worker.threads)
    process.metrics.show("worker_threads_busy", "Threads in a handler now", lambda: worker.busy)


def _warn_without_base(process: Process, parts: Parts, queue: str) -> None:
    """Say so when neither this process nor another consumes the base queue: its tasks wait."""
    if process.settings.consume_base:
        return
    try:
        nodes = live_nodes(parts.outbox.context)
    except UnavailableError:
        return
    if not any(queue in node.queues for node in nodes):
        _log.warning("base_queue_without_consumer", queue=queue)


def _threads(settings: Settings) -> int:
    return settings.worker.threads
