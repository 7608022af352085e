"""Answers as a table for people or as JSON for programs.

A table is plain text, its columns as wide as they need, so that it survives pipes. What came from
users cannot steer the terminal.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, TypeAlias

import sqlalchemy as sa
import typer
from rich.cells import cell_len

#: A row of a query, or a dict.
Row: TypeAlias = Mapping[str, Any] | sa.RowMapping

_GAP = "  "


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
    lines = [list(columns), *([_clean(text_of(row[name])) for name in columns] for row in rows)]
    widths = [max(map(cell_len, cells)) for cells in zip(*lines, strict=True)]
    for cells in lines:
        padded = [
            cell + " " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True)
        ]
        sys.stdout.write(_GAP.join(padded).rstrip() + "\n")


def show_fields(fields: Mapping[str, Any], output: Format) -> None:
    """Write one thing: its fields that have a value, one below the other, or JSON."""
    if output is Format.JSON:
        show_json(dict(fields))
        return
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        if value in (None, "", [], {}):
            continue
        first, *rest = text_of(value).splitlines() or [""]
        sys.stdout.write(f"{name:<{width}}{_GAP}{_clean(first)}\n")
        for line in rest:
            sys.stdout.write(f"{' ' * width}{_GAP}{_clean(line)}\n")


def text_of(value: Any) -> str:
    """Return a value as people read it: times in UTC to the second."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dt.datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    if isinstance(value, (dict, list)):
        return json.dumps(value, default=_plain, ensure_ascii=False)
    return str(value)


def _clean(text: str) -> str:
    """Return a text in which every character is shown, and none is obeyed."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _plain(value: Any) -> Any:
    if isinstance(value, dt.datetime):
        return value.isoformat(timespec="microseconds") + "Z"
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return str(value)
