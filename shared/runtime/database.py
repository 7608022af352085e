"""The engine of a process: a pool sized for its threads, with a time limit on every wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool

from shared.outbox.dialect import SQLITE_BUSY_MILLISECONDS, prepare
from shared.runtime.problems import EXTRA_CONNECTIONS
from shared.runtime.settings import Settings

#: Called with the seconds that a caller waited for a connection.
ObserveWait = Callable[[float], None]


def build_engine(
    settings: Settings, *, threads: int, observe_wait: ObserveWait | None = None
) -> sa.Engine:
    """Return an engine; nothing is connected before its first use.

    `threads` is how many of the process's threads use the database at a time. The folder of a
    SQLite file is made. Sessions get the settings of `shared.outbox.dialect.prepare`.
    """
    limits = settings.database
    url = sa.make_url(settings.database_url)
    if settings.is_sqlite:
        Path(str(url.database)).parent.mkdir(parents=True, exist_ok=True)
        arguments: dict[str, Any] = {
            "timeout": SQLITE_BUSY_MILLISECONDS / 1000,
            "check_same_thread": False,
        }
    else:
        url = url.update_query_dict({"charset": url.query.get("charset", "utf8mb4")})
        arguments = {
            "connect_timeout": max(1, round(limits.connect_timeout_seconds)),
            "read_timeout": max(1, round(limits.read_timeout_seconds)),
            "write_timeout": max(1, round(limits.read_timeout_seconds)),
        }
    engine = sa.create_engine(
        url,
        poolclass=_timed_pool(observe_wait),
        pool_size=limits.pool_size or threads + EXTRA_CONNECTIONS,
        max_overflow=0,
        pool_timeout=limits.pool_wait_seconds,
        pool_recycle=limits.recycle_seconds,
        pool_pre_ping=not settings.is_sqlite,
        pool_use_lifo=True,
        connect_args=arguments,
        # What rows hold must not reach the log with an error.
        hide_parameters=True,
    )
    prepare(engine)
    return engine


def driver_says(error: BaseException) -> str:
    """Return what a database's driver said: without numbers, statements and links to manuals."""
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    texts = [part for part in getattr(cause, "args", ()) if isinstance(part, str)]
    return (texts[-1] if texts else str(cause)).partition("\n")[0]


def _timed_pool(observe: ObserveWait | None) -> type[QueuePool]:
    if observe is None:
        return QueuePool
    tell = observe

    class TimedPool(QueuePool):
        """A pool that tells how long callers wait. A class, since a pool recreates itself by it."""

        def _do_get(self) -> ConnectionPoolEntry:
            began = time.perf_counter()
            try:
                return super()._do_get()
            finally:
                tell(time.perf_counter() - began)

    return TimedPool
