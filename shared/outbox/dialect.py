"""What differs between MySQL/MariaDB and SQLite: words in the statements, settings of connections.

Every hot statement is written once with tokens in braces; a `Dialect` fills them at the start.
"""

from __future__ import annotations

import datetime as dt
import random
import sqlite3
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from shared.core.clock import Deadline

#: Seconds a statement waits for a row lock before the database gives up.
LOCK_WAIT_SECONDS = 5
#: Seconds one statement may run; a stalled one must not hang a scan for ever.
STATEMENT_SECONDS = 30
#: Seconds a transaction may sit idle: a frozen process must not hold a row for ever.
IDLE_TRANSACTION_SECONDS = 30
#: Seconds without a byte from the server after which a connection counts as dead: more than any
#: statement may take. A network that swallows packets must not hang a thread for ever.
ANSWER_SECONDS = 40
#: Milliseconds SQLite waits for its one writer.
SQLITE_BUSY_MILLISECONDS = 30_000

TIME_FORMAT = "%Y-%m-%d %H:%M:%S.%f"

_prepared: weakref.WeakSet[sa.Engine] = weakref.WeakSet()
_bounded: weakref.WeakSet[sa.Engine] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Dialect:
    """The words of one database.

    `retryable` are the driver's error numbers after which the same transaction may be tried again,
    `duplicates` those of a unique key that another has taken, `outages` those with which a server
    says that it cannot serve anybody now.
    """

    name: str
    tokens: dict[str, str]
    retryable: frozenset[int]
    duplicates: frozenset[int] = frozenset()
    outages: frozenset[int] = frozenset()

    def sql(self, text: str) -> str:
        """Fill the tokens of a statement; unknown ones are an error."""
        return text.format_map(self.tokens)

    def placeholders(self, count: int) -> str:
        """Return `count` parameter marks, separated by commas."""
        mark = self.tokens["p"]
        return ",".join([mark] * count)

    def sql_ids(self, text: str, **lists: int) -> str:
        """Fill the tokens, and each `%(name)s` with that many parameter marks."""
        marks = {name: self.placeholders(count) for name, count in lists.items()}
        filled = text.format_map(self.tokens)
        for name, value in marks.items():
            filled = filled.replace(f"%({name})s", value)
        return filled

    def to_time(self, value: Any) -> dt.datetime | None:
        """Turn a driver's value of a time column into a naive UTC datetime."""
        return dt.datetime.strptime(value, TIME_FORMAT) if isinstance(value, str) else value

    def from_time(self, value: dt.datetime) -> Any:
        """Turn a naive UTC datetime into what the driver binds."""
        return value.strftime(TIME_FORMAT) if self.name == "sqlite" else value


MYSQL = Dialect(
    name="mysql",
    tokens={
        "p": "%s",
        # {now} may search an index; {clock} is read at the very moment, for rows read by id.
        "now": "UTC_TIMESTAMP(6)",
        "clock": "SYSDATE(6)",
        "now_plus": "UTC_TIMESTAMP(6) + INTERVAL %s SECOND",
        "clock_plus": "SYSDATE(6) + INTERVAL %s SECOND",
        "now_or_later": "GREATEST(CAST(%s AS DATETIME(6)), UTC_TIMESTAMP(6))",
        "for_update": "FOR UPDATE",
        "skip_locked": "FOR UPDATE SKIP LOCKED",
        "by_primary": "FORCE INDEX (PRIMARY)",
        "by_claim": "FORCE INDEX (ix_tasks_claim)",
        "by_due": "FORCE INDEX (ix_tasks_due)",
        "by_lease": "FORCE INDEX (ix_tasks_lease)",
        "by_resource": "FORCE INDEX (ix_tasks_resource)",
        # A dispatch id made of a prefix (16 digits, fresh for each page) and the row's id.
        "dispatch_id": "CONCAT(%s, LPAD(LOWER(HEX(id)), 16, '0'))",
        "insert_ignore": "INSERT IGNORE",
        "least": "LEAST",
        "greatest": "GREATEST",
        "wait_micros": "TIMESTAMPDIFF(MICROSECOND, GREATEST(created_at, due_at), UTC_TIMESTAMP(6))",
    },
    # deadlock, lock wait, record changed since last read, lock wait with NOWAIT on MySQL 8, and
    # a savepoint that is gone: a deadlock took it along, and undoing it hides the deadlock
    retryable=frozenset({1213, 1205, 1020, 3572, 1305}),
    duplicates=frozenset({1062}),
    # no room, too many connections, going down, host blocked, connection killed, network errors,
    # too many of this user, read-only, statement too long, idle too long
    outages=frozenset(
        {1021, 1030, 1037, 1040, 1041, 1053, 1114, 1129, 1135, 1152, 1158, 1159, 1160, 1161}
        | {1184, 1203, 1226, 1290, 1317, 1836, 1927, 1969, 3024, 4031}
    ),
)

SQLITE = Dialect(
    name="sqlite",
    tokens={
        "p": "?",
        "now": "utc_now(0)",
        "clock": "utc_now(0)",
        "now_plus": "utc_now(?)",
        "clock_plus": "utc_now(?)",
        "now_or_later": "max(?, utc_now(0))",
        "for_update": "",
        "skip_locked": "",
        "by_primary": "",
        "by_claim": "INDEXED BY ix_tasks_claim",
        "by_due": "INDEXED BY ix_tasks_due",
        "by_lease": "INDEXED BY ix_tasks_lease",
        "by_resource": "INDEXED BY ix_tasks_resource",
        "dispatch_id": "? || printf('%016x', id)",
        "insert_ignore": "INSERT OR IGNORE",
        "least": "min",
        "greatest": "max",
        "wait_micros": "micros_between(max(created_at, due_at), utc_now(0))",
    },
    retryable=frozenset(),
    # No numbers, and no races: whoever may write has begun after the other's commit.
)


#: By SQLAlchemy's names.
DIALECTS = {"mysql": MYSQL, "mariadb": MYSQL, "sqlite": SQLITE}


def dialect_of(engine: sa.Engine) -> Dialect:
    """Return the dialect of an engine.

    Raises ValueError for a database that the outbox does not know.
    """
    name = engine.dialect.name
    if name not in DIALECTS:
        raise ValueError(f"the outbox runs on MySQL, MariaDB and SQLite, not on {name}")
    return DIALECTS[name]


def prepare(engine: sa.Engine) -> None:
    """Give every connection of this engine the settings that the protocols rely on.

    Call it before the engine is used; connections already pooled are dropped. On MySQL: READ
    COMMITTED, no autocommit, UTC, bounded waits. On SQLite: WAL, full synchronous, BEGIN IMMEDIATE.
    """
    if engine in _prepared:
        return
    if dialect_of(engine) is SQLITE:
        if engine.url.database in {None, "", ":memory:"}:
            raise ValueError("the outbox needs a SQLite file: threads and processes share it")
        sa.event.listen(engine, "connect", _set_up_sqlite)
        sa.event.listen(engine, "begin", _begin_immediate)
    else:
        dialect = engine.dialect

        def set_up(connection: Any, _record: Any) -> None:
            _set_up_mysql(connection)
            # To this a connection is set back that somebody has used with another isolation.
            dialect.default_isolation_level = "READ COMMITTED"

        sa.event.listen(engine, "connect", set_up)
    _prepared.add(engine)
    engine.dispose()


def is_prepared(engine: sa.Engine) -> bool:
    """Tell whether `prepare` was called for this engine."""
    return engine in _prepared


def bound_answers(engine: sa.Engine) -> None:
    """Let no connection wait for ever for its server, unless its engine says how long itself."""
    if engine in _bounded or dialect_of(engine) is SQLITE:
        return
    _bounded.add(engine)
    if engine.driver in {"pymysql", "mysqldb"}:
        sa.event.listen(engine, "do_connect", _bound_answers)
        engine.dispose()


def _bound_answers(
    _dialect: sa.Dialect, _record: Any, _arguments: Any, parameters: dict[str, Any]
) -> None:
    for name in ("read_timeout", "write_timeout"):
        parameters.setdefault(name, ANSWER_SECONDS)


def _set_up_mysql(connection: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT VERSION()")
        is_mariadb = "mariadb" in str(cursor.fetchone()[0]).lower()
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        settings = [
            # Without transactions there are no locks, and nothing of what they promise.
            "autocommit = 0",
            "time_zone = '+00:00'",
            f"innodb_lock_wait_timeout = {LOCK_WAIT_SECONDS}",
            f"lock_wait_timeout = {LOCK_WAIT_SECONDS * 2}",
        ]
        if is_mariadb:
            settings.append(f"max_statement_time = {STATEMENT_SECONDS}")
            settings.append(f"idle_transaction_timeout = {IDLE_TRANSACTION_SECONDS}")
        else:
            settings.append(f"max_execution_time = {STATEMENT_SECONDS * 1000}")
        cursor.execute("SET SESSION " + ", SESSION ".join(settings))
    connection.commit()


def _utc_now(offset_seconds: float | None) -> str | None:
    if offset_seconds is None:
        return None
    moment = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=float(offset_seconds))
    return moment.strftime(TIME_FORMAT)


def _micros_between(start: str | None, end: str | None) -> int | None:
    if start is None or end is None:
        return None
    span = dt.datetime.strptime(end, TIME_FORMAT) - dt.datetime.strptime(start, TIME_FORMAT)
    return span // dt.timedelta(microseconds=1)


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    # The driver must not open transactions by itself: it would begin them deferred, and two
    # readers that both want to write then fail at once instead of waiting.
    connection.isolation_level = None
    connection.create_function("utc_now", 1, _utc_now)
    connection.create_function("micros_between", 2, _micros_between)
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {SQLITE_BUSY_MILLISECONDS}")
    _switch_to_wal(cursor)
    for pragma in ("synchronous = FULL", "foreign_keys = ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _switch_to_wal(cursor: Any) -> None:
    """Ask for WAL until the file has it.

    The one switch of a fresh file needs it alone, and SQLite does not wait for that: beside another
    connection it says "locked" at once, whatever the busy timeout.
    """
    deadline = Deadline(SQLITE_BUSY_MILLISECONDS / 1000)
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
            if cursor.fetchone()[0] == "wal" or deadline.expired():
                return
        except sqlite3.OperationalError:
            if deadline.expired():
                raise
        threading.Event().wait(random.uniform(0.005, 0.05))


def _begin_immediate(connection: sa.Connection) -> None:
    # Readers say execution_options(read_only=True): WAL lets them run beside the writer.
    read_only = connection.get_execution_options().get("read_only", False)
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")
