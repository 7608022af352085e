"""Transactions on the driver's own cursor: half the cost of a statement through SQLAlchemy Core.

A `Line` is one connection that a thread keeps; it comes back by itself after an outage.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.core.clock import Deadline
from shared.core.errors import InvalidError, UnavailableError
from shared.outbox.dialect import (
    DIALECTS,
    SQLITE,
    Dialect,
    bound_answers,
    dialect_of,
    is_prepared,
    prepare,
)
from shared.outbox.schema import tasks

T = TypeVar("T")

#: Error numbers that MySQL's client side gives when it could not speak with the server.
CLIENT_ERRORS = range(2000, 3000)
#: How often a transaction that met a deadlock or a lock wait is tried.
TRIES = 6
_HINT = "use Session(outbox.engine), or binds={schema.tasks: outbox.engine, ...}"


class BusyError(UnavailableError):
    """The database answers, but others hold the rows."""


def cursor_of(session: Session) -> Any:
    """Return a driver's cursor in a Session's own transaction; the caller closes it."""
    return session.connection().connection.cursor()


class Database:
    """An engine, its dialect, and the ways to run a transaction on it."""

    def __init__(self, engine: sa.Engine) -> None:
        prepare(engine)
        bound_answers(engine)
        self.engine = engine
        self.dialect: Dialect = dialect_of(engine)
        self.errors: tuple[type[Exception], ...] = (
            engine.dialect.loaded_dbapi.Error,
            sa.exc.DBAPIError,
            sa.exc.TimeoutError,
        )

    @contextmanager
    def cursor_in(self, session: Session) -> Iterator[Any]:
        """Give a driver's cursor in a Session's own transaction on this database.

        The driver's errors come out as SQLAlchemy's, as from everything else in a Session. Raises
        InvalidError for a Session of another database. One with several binds names this one for
        the outbox's table `tasks`, if it is not the Session's own.
        """
        connection = self._connection_in(session)
        cursor = connection.connection.cursor()
        try:
            yield cursor
        except self.engine.dialect.loaded_dbapi.Error as error:
            raise self._translated(error, connection) from error
        finally:
            cursor.close()

    def _connection_in(self, session: Session) -> sa.Connection:
        connection: sa.Connection | None = None
        with suppress(sa.exc.UnboundExecutionError):
            connection = session.connection()
            if connection.engine is self.engine:
                return connection
        if connection is None or not self._is_mine(connection.engine):
            try:
                connection = session.connection(bind_arguments={"clause": tasks})
            except sa.exc.UnboundExecutionError as error:
                raise InvalidError(f"the session has no bind for tasks: {_HINT}") from error
        if not self._is_mine(connection.engine):
            raise InvalidError(
                f"the session writes to {connection.engine.url!r}, not to this outbox's "
                f"{self.engine.url!r}: {_HINT}"
            )
        return connection

    def _translated(self, error: Exception, connection: sa.Connection) -> sa.exc.DBAPIError:
        dialect = self.engine.dialect
        is_lost = dialect.is_disconnect(error, None, None)  # type: ignore[arg-type]
        if is_lost:
            # Or the rollback that follows would fail too, and hide this error.
            connection.invalidate(error)
        found = sa.exc.DBAPIError.instance(
            "INSERT INTO tasks ...",
            None,
            error,
            dialect.loaded_dbapi.Error,
            hide_parameters=True,
            connection_invalidated=is_lost,
            dialect=dialect,
        )
        assert isinstance(found, sa.exc.DBAPIError)
        return found

    def _is_mine(self, engine: sa.Engine) -> bool:
        if engine is self.engine or engine.pool is self.engine.pool:
            return True
        if engine.dialect.name not in DIALECTS or dialect_of(engine) is not self.dialect:
            return False
        if self.dialect is not SQLITE:
            # Its host may have many names.
            return engine.url.database == self.engine.url.database
        if not is_prepared(engine):
            raise InvalidError("call shared.outbox.dialect.prepare(engine) for an engine of yours")
        mine, other = (Path(str(one.url.database)).resolve() for one in (self.engine, engine))
        return mine == other

    def line(self) -> Line:
        """Return a connection of one's own; nothing is opened before its first transaction."""
        return Line(self)

    @contextmanager
    def transaction(self, *, read_only: bool = False) -> Iterator[Any]:
        """Run one transaction on a pooled connection; yields the driver's cursor."""
        line = Line(self)
        try:
            with line.transaction(read_only=read_only) as cursor:
                yield cursor
        finally:
            line.close()

    def run(
        self,
        work: Callable[[Any], T],
        *,
        line: Line | None = None,
        read_only: bool = False,
        tries: int = TRIES,
    ) -> T:
        """Run `work(cursor)` in one transaction, again after a deadlock or a lock wait.

        `work` must be safe to repeat. Raises UnavailableError when the database does not answer.
        """
        return self._repeat(lambda: self._once(work, line, read_only=read_only), tries)

    def run_session(
        self, work: Callable[[Session], T], *, read_only: bool = False, tries: int = TRIES
    ) -> T:
        """Run `work(session)` in one transaction of a Session, with the same repetition.

        Again also after a lost race for a unique key: both have found a row missing, and the one
        that was refused finds the other's when it looks once more.
        """
        engine = self.engine.execution_options(read_only=True) if read_only else self.engine

        def once() -> T:
            with Session(engine, expire_on_commit=False) as session, session.begin():
                return work(session)

        return self._repeat(once, tries, races=True)

    def is_retryable(self, error: BaseException) -> bool:
        """Tell whether the same transaction may simply be tried again."""
        return _number(error) in self.dialect.retryable

    def is_lost_race(self, error: BaseException) -> bool:
        """Tell whether another has taken a unique key first."""
        return _number(error) in self.dialect.duplicates

    def _once(self, work: Callable[[Any], T], line: Line | None, *, read_only: bool) -> T:
        if line is not None:
            with line.transaction(read_only=read_only) as cursor:
                return work(cursor)
        with self.transaction(read_only=read_only) as cursor:
            return work(cursor)

    def _repeat(self, once: Callable[[], T], tries: int, *, races: bool = False) -> T:
        for left in range(tries - 1, -1, -1):
            try:
                return once()
            except self.errors as error:
                is_race = races and self.is_lost_race(error)
                if not (is_race or self.is_retryable(error)):
                    if self.is_outage(error):
                        raise UnavailableError(
                            "the database does not answer", error=str(error)
                        ) from error
                    raise
                if left == 0 and is_race:
                    # Nobody loses so often: the row is there, and `work` does not look for it.
                    raise
                if left == 0:
                    raise BusyError("the database is too busy", error=str(error)) from error
                # Two transactions that met once should not meet in step again.
                threading.Event().wait(random.uniform(0.001, 0.02))
        raise AssertionError("unreachable")

    def is_outage(self, error: BaseException) -> bool:
        """Tell whether the database did not answer, as opposed to refusing a statement."""
        if isinstance(error, sa.exc.TimeoutError):
            return True
        cause: BaseException | None = error
        if isinstance(error, sa.exc.DBAPIError):
            if error.connection_invalidated:
                return True
            cause = error.orig
        if type(cause).__name__ == "InterfaceError":
            return True
        # Drivers also call it an OperationalError when a statement is refused for what it says.
        args: tuple[Any, ...] = getattr(cause, "args", ())
        code = args[0] if args else None
        if isinstance(code, int):
            return code in self.dialect.outages or code in CLIENT_ERRORS
        return type(cause).__name__ == "OperationalError"


def _number(error: BaseException) -> object:
    """Return the driver's error number; None for errors without one."""
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    args: tuple[Any, ...] = getattr(cause, "args", ())
    return args[0] if args else None


class Line:
    """One connection that one thread keeps between transactions. Not for two threads at a time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Any = None

    @contextmanager
    def transaction(self, *, read_only: bool = False) -> Iterator[Any]:
        """Run one transaction; commits at the end, rolls back on an error.

        After any error of the driver the connection is thrown away, and the next transaction
        opens a new one: the state of a connection that failed is not worth knowing.
        """
        connection = self._connection
        if connection is None:
            connection = self._connection = self._database.engine.raw_connection()
        driver = connection.dbapi_connection
        cursor = driver.cursor()
        try:
            if self._database.dialect is SQLITE:
                cursor.execute("BEGIN" if read_only else "BEGIN IMMEDIATE")
            yield cursor
            driver.commit()
        except self._database.errors:
            self._give_up(driver)
            raise
        except Exception:
            try:
                driver.rollback()
            except Exception:
                self._drop()
            raise
        except BaseException:
            # An interrupt may have hit between a statement and its answer.
            self._give_up(driver)
            raise
        finally:
            try:
                cursor.close()
            except Exception:
                self._drop()

    def wait_until_up(self, deadline: Deadline) -> bool:
        """Ask the database once whether it answers; never raises."""
        if deadline.expired():
            return False
        try:
            with self.transaction(read_only=True) as cursor:
                cursor.execute("SELECT 1")
                cursor.fetchall()
        except self._database.errors:
            return False
        return True

    def close(self) -> None:
        """Give the connection back to the pool."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except Exception:
                connection.invalidate()

    def _give_up(self, driver: Any) -> None:
        if self._database.dialect is SQLITE:
            # Closing alone would keep the one write lock for as long as anybody holds the cursor,
            # and the traceback of the error does.
            with suppress(Exception):
                driver.rollback()
        self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.invalidate()
            connection.close()
        except Exception:
            return
