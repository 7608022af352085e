"""Answers as a table for people or as JSON for programs."""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, TypeAlias

import sqlalchemy as sa
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

#: A row of a query, or a dict.
Row: TypeAlias = Mapping[str, Any] | sa.RowMapping


class Format(StrEnum):
    """How an answer is written."""

    TABLE = "table"
    JSON = "json"


FormatOption = Annotated[Format, typer.Option("--output", "-o", help="table or json.")]


def show_json(value: Any) -> None:
    """Write a value as JSON: times in RFC 3339 and UTC."""
    sys.stdout.write(json.dumps(value, indent=2, default=_plain, ensure_ascii=False) + "\n")


def show_rows(rows: Sequence[Row], columns: Sequence[str], output: Format, *, empty: str) -> None:
    """Write rows: some columns of them as a table, or all of them as JSON."""
    if output is Format.JSON:
        show_json([dict(row) for row in rows])
        return
    if not rows:
        sys.stdout.write(empty + "\n")
        return
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(escape(_text(row[column])) for column in columns))
    Console(soft_wrap=True).print(table)


def show_fields(fields: Mapping[str, Any], output: Format) -> None:
    """Write one thing: a line for each field that has a value, or JSON."""
    if output is Format.JSON:
        show_json(dict(fields))
        return
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        if value not in (None, "", [], {}):
            sys.stdout.write(f"{name:<{width}}  {_text(value)}\n")


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dt.datetime):
        return value.isoformat(sep=" ", timespec="milliseconds")
    if isinstance(value, (dict, list)):
        return json.dumps(value, default=_plain, ensure_ascii=False)
    return str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return value.isoformat(timespec="microseconds") + "Z"
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return str(value)
