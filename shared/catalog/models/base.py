"""What all tables of the catalogue share: the base, column types and the database's clock.

There are no foreign keys: a child's INSERT would lock its parent's row, outside the lock order.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.sql.compiler import SQLCompiler

from shared.outbox.schema import UTCDateTime

S = TypeVar("S")

#: Longest object key, in bytes of UTF-8. The index column is as long.
MAX_KEY_BYTES = 1024

#: Arguments that every table gives to MySQL.
MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4"}


class Base(DeclarativeBase):
    """Declarative base; its `metadata` is what the migrations are compared with."""

    type_annotation_map = {
        dict[str, Any]: sa.JSON(none_as_null=True),
        dict[str, str]: sa.JSON(none_as_null=True),
        list[str]: sa.JSON(none_as_null=True),
        dt.datetime: UTCDateTime,
    }


class KeyBytes(sa.types.TypeDecorator[str]):
    """An object's key: text in Python, its UTF-8 bytes in the database, compared byte by byte.

    The usual collations pad blanks and fold letters; bytes do not. Bounds of a listing need not be
    valid UTF-8, so bytes are bound as they are.
    """

    impl = sa.LargeBinary
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        """Pick the column type of the dialect."""
        if dialect.name == "sqlite":
            return dialect.type_descriptor(sa.LargeBinary())
        return dialect.type_descriptor(mysql.VARBINARY(MAX_KEY_BYTES))

    def process_bind_param(self, value: str | bytes | None, dialect: sa.Dialect) -> Any:
        """Turn text into the bytes that the column holds."""
        return value.encode() if isinstance(value, str) else value

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> str | None:
        """Turn the column's bytes into text."""
        return None if value is None else bytes(value).decode()


def by_index(statement: S, entity: Any, index: str) -> S:
    """Let MySQL and MariaDB walk an index from where the last page ended.

    Left to itself, the planner takes only its equal columns while more than half of the rows lie
    behind, and reads all rows before the page again: a walk then costs the square of its length.
    """
    hinted: Any = statement
    for dialect in ("mysql", "mariadb"):
        hinted = hinted.with_hint(entity, f"FORCE INDEX ({index})", dialect)
    return cast(S, hinted)


class utc_now(sa.sql.functions.FunctionElement[dt.datetime]):  # noqa: N801 - reads as a function
    """The database's clock in UTC with microseconds; `seconds` moves it."""

    type = UTCDateTime()
    inherit_cache = True
    name = "utc_now"

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__(sa.literal(seconds, sa.Float))


@compiles(utc_now, "mysql")
@compiles(utc_now, "mariadb")
def _mysql_now(element: utc_now, compiler: SQLCompiler, **kwargs: Any) -> str:
    seconds = compiler.process(element.clauses, **kwargs)
    return f"(UTC_TIMESTAMP(6) + INTERVAL {seconds} SECOND)"


@compiles(utc_now, "sqlite")
def _sqlite_now(element: utc_now, compiler: SQLCompiler, **kwargs: Any) -> str:
    return f"utc_now({compiler.process(element.clauses, **kwargs)})"


class utc_clock(sa.sql.functions.FunctionElement[dt.datetime]):  # noqa: N801 - reads as a function
    """The database's clock at the very moment: beside a row, after its lock was given."""

    type = UTCDateTime()
    inherit_cache = True
    name = "utc_clock"


@compiles(utc_clock, "mysql")
@compiles(utc_clock, "mariadb")
def _mysql_clock(_element: utc_clock, _compiler: SQLCompiler, **_kwargs: Any) -> str:
    # UTC, because every session's time zone is.
    return "SYSDATE(6)"


@compiles(utc_clock, "sqlite")
def _sqlite_clock(_element: utc_clock, _compiler: SQLCompiler, **_kwargs: Any) -> str:
    return "utc_now(0)"
