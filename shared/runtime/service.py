"""How a service process runs from its first to its last moment. Composition roots give the parts.

Boot: settings, logs, health port, database schema, parts, ready. End: the stages of the design,
each with a share of `shutdown_seconds`.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import redis
import structlog

from shared.core.errors import BloxError
from shared.runtime.assembly import Parts, assemble
from shared.runtime.logging import drain_logs
from shared.runtime.probes import Probe, database_question, redis_question
from shared.runtime.process import Process
from shared.runtime.schema import schema_fault
from shared.runtime.settings import Settings, load_settings, unknown_variables
from shared.runtime.shutdown import Stage, run_stages

#: Exit codes: ended in order; a stage or a part failed; the settings forbid the start.
CLEAN, UNCLEAN, REFUSED = 0, 1, 2
#: Seconds that closing the health port, the logs and the interpreter get after the stages.
LAST_SECONDS = 3.0
#: Seconds between two looks at a schema that is not there yet.
SCHEMA_EVERY_SECONDS = 2.0

_log = structlog.get_logger("service")


@dataclass(frozen=True, slots=True)
class Running:
    """What a service has started: the stages that end it, before outbox and stores are closed."""

    stages: Sequence[Stage] = ()


#: Registers handlers, starts threads; it may ask for the end by `process.stop.request`.
Start = Callable[[Process, Parts], Running]


def run_service(
    service: str, start: Start, *, needs_redis: bool, threads: Callable[[Settings], int]
) -> int:
    """Run one service until a signal ends it, and return the exit code of the process.

    `needs_redis` makes readiness depend on Redis. `threads` says how many threads use the database.
    """
    try:
        settings = load_settings()
        process = Process(service, settings)
        process.boot(unknown=unknown_variables())
    except BloxError as error:
        sys.stderr.write(f"{service} cannot start:\n{error}\n")
        return REFUSED
    try:
        parts = assemble(settings, process.metrics, threads=threads(settings))
    except Exception:
        _log.exception("service_failed")
        process.close()
        return UNCLEAN
    probes = _probes(process, parts, needs_redis=needs_redis)
    running = Running()
    try:
        if _wait_for_schema(process, parts):
            running = start(process, parts)
            process.health.booted()
            _log.info("service_ready")
            process.stop.wait()
            _log.info("service_stopping", reason=process.stop.reason)
    except Exception:
        _log.exception("service_failed")
        _end(process, parts, running, probes)
        return UNCLEAN
    return _end(process, parts, running, probes)


def _wait_for_schema(process: Process, parts: Parts) -> bool:
    """Wait until the database has the schema of this release; False when asked to stop first."""
    said = ""
    while True:
        fault = schema_fault(parts.engine)
        if fault is None:
            return True
        process.health.boot_step(fault)
        if fault != said:
            _log.warning("waiting_for_schema", reason=fault)
            said = fault
        if process.stop.wait(SCHEMA_EVERY_SECONDS):
            return False


def _probes(process: Process, parts: Parts, *, needs_redis: bool) -> list[Probe]:
    settings, health = process.settings, process.health
    probes = [Probe("database", database_question(parts.engine))]
    if needs_redis:
        question = redis_question(
            settings.redis_url, timeout_seconds=settings.outbox.redis_timeout_seconds
        )
        probes.append(Probe("redis", question))
        _warn_of_eviction(settings.redis_url)
    for probe in probes:
        health.add_ready(
            probe.name, probe.pulse.within(settings.health.answer_seconds, "last answer")
        )
        probe.start()
    return probes


def _warn_of_eviction(redis_url: str) -> None:
    """Say so when Redis may drop keys by itself: every message could be one of them."""
    client = redis.Redis.from_url(redis_url, socket_timeout=2.0, socket_connect_timeout=2.0)
    try:
        policy = client.config_get("maxmemory-policy").get("maxmemory-policy")
    except redis.RedisError:
        return
    finally:
        client.close()
    if policy not in {None, "noeviction"}:
        _log.warning("redis_may_evict_messages", maxmemory_policy=policy, wanted="noeviction")


def _end(process: Process, parts: Parts, running: Running, probes: list[Probe]) -> int:
    process.health.drain()
    # Whatever holds up the end after the stages, be it the interpreter's own: the process goes, and
    # the log shows where every thread stood.
    faulthandler.dump_traceback_later(process.settings.shutdown_seconds + LAST_SECONDS, exit=True)

    def close_outbox(seconds: float) -> None:
        if not parts.outbox.close(seconds * 0.9):
            _log.warning("outbox_threads_left_behind")

    def close_stores(_seconds: float) -> None:
        for probe in probes:
            probe.stop()
        parts.engine.dispose()

    outcome = run_stages(
        [*running.stages, Stage("outbox", 0.2, close_outbox), Stage("stores", 0.05, close_stores)],
        process.settings.shutdown_seconds,
    )
    _log.info("service_stopped", stages=outcome.done, left_behind=outcome.overran)
    process.close()
    drain_logs()
    if not outcome.is_clean:
        # A thread that was left behind would hold up the interpreter's own end.
        os._exit(UNCLEAN)
    return CLEAN
