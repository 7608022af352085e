"""What the conditional headers of a request demand. Pure.

Reads are judged here, writes in the transaction that commits them.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum

from shared.catalog.conditions import ANY
from shared.catalog.conditions import Conditions as WriteConditions
from shared.core.errors import InvalidError

#: One entity tag: an optional W/, then any visible characters in quotes.
_TAG = re.compile(r'\s*(?P<weak>W/)?"(?P<tag>[\x21\x23-\x7e\x80-\xff]*)"\s*(?:,|\Z)')
#: Clients of S3 send tags without quotes as well.
_BARE = re.compile(r"\s*(?P<tag>[0-9A-Za-z_.+/=-]+)\s*\Z")


class Verdict(Enum):
    """What a read does next."""

    SERVE = "serve"
    NOT_MODIFIED = "not modified"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Tags:
    """A list of entity tags, or any (``*``)."""

    is_any: bool = False
    strong: frozenset[str] = frozenset()
    weak: frozenset[str] = frozenset()

    def strongly(self) -> tuple[str, ...]:
        """Return the tags that count for If-Match: weak ones never match."""
        return (ANY,) if self.is_any else tuple(sorted(self.strong))

    def weakly(self) -> tuple[str, ...]:
        """Return the tags that count for If-None-Match: W/ makes no difference."""
        return (ANY,) if self.is_any else tuple(sorted(self.strong | self.weak))


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditional headers of one request; None where a header is absent."""

    if_match: Tags | None = None
    if_none_match: Tags | None = None
    if_modified_since: dt.datetime | None = None
    if_unmodified_since: dt.datetime | None = None
    if_range: str | None = None

    def for_write(self) -> WriteConditions:
        """Return what the commit of a PUT or DELETE judges. Dates are no conditions of a write."""
        return WriteConditions(
            if_match=None if self.if_match is None else self.if_match.strongly(),
            if_none_match=None if self.if_none_match is None else self.if_none_match.weakly(),
        )

    def judge(self, *, etag: str, modified_at: dt.datetime) -> Verdict:
        """Judge a GET or HEAD in the order of the HTTP standard. Tags beat dates."""
        moment = modified_at.replace(microsecond=0)
        if self.if_match is not None:
            if not _matches(self.if_match.strongly(), etag):
                return Verdict.FAILED
        elif self.if_unmodified_since is not None and moment > self.if_unmodified_since:
            return Verdict.FAILED
        if self.if_none_match is not None:
            if _matches(self.if_none_match.weakly(), etag):
                return Verdict.NOT_MODIFIED
        elif self.if_modified_since is not None and moment <= self.if_modified_since:
            return Verdict.NOT_MODIFIED
        return Verdict.SERVE

    def keeps_range(self, *, etag: str, modified_at: dt.datetime) -> bool:
        """Tell whether If-Range lets the Range header count: same tag, or exactly the same date."""
        if self.if_range is None:
            return True
        text = self.if_range.strip()
        if text.startswith(('"', "W/")):
            return text == f'"{etag}"'
        return _date(text) == modified_at.replace(microsecond=0)


def parse_conditions(headers: Mapping[str, str]) -> Conditions:
    """Read the conditional headers. Raises InvalidError for tags that are none.

    A date that cannot be read is ignored, as the standard asks.
    """
    return Conditions(
        if_match=_tags("If-Match", headers.get("if-match")),
        if_none_match=_tags("If-None-Match", headers.get("if-none-match")),
        if_modified_since=_date(headers.get("if-modified-since")),
        if_unmodified_since=_date(headers.get("if-unmodified-since")),
        if_range=headers.get("if-range"),
    )


def _matches(wanted: tuple[str, ...], etag: str) -> bool:
    return ANY in wanted or etag in wanted


def _tags(name: str, header: str | None) -> Tags | None:
    if header is None:
        return None
    if header.strip() == "*":
        return Tags(is_any=True)
    bare = _BARE.match(header)
    if bare is not None:
        return Tags(strong=frozenset({bare["tag"]}))
    strong: set[str] = set()
    weak: set[str] = set()
    position = 0
    while position < len(header):
        match = _TAG.match(header, position)
        if match is None:
            raise InvalidError(
                f"{name} holds no list of entity tags", code="condition_invalid", header=name
            )
        (weak if match["weak"] else strong).add(match["tag"])
        position = match.end()
    if not strong and not weak:
        raise InvalidError(f"{name} is empty", code="condition_invalid", header=name)
    return Tags(strong=frozenset(strong), weak=frozenset(weak))


def _date(header: str | None) -> dt.datetime | None:
    """Return a date as naive UTC, None when there is none or it cannot be read."""
    if header is None:
        return None
    try:
        moment = parsedate_to_datetime(header)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    if moment.tzinfo is None:
        return moment
    try:
        return moment.astimezone(dt.UTC).replace(tzinfo=None)
    except OverflowError:
        return None
