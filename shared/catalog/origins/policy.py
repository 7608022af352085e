"""What a bucket says of its origins: which keys come from where, and what a GET does meanwhile.

Pure data. `OriginPolicy` is what a caller sends, `StoredOrigin` what the bucket keeps: the same,
with the headers sealed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Literal
from urllib.parse import quote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from shared.catalog.models.base import MAX_KEY_BYTES
from shared.catalog.secret_box import SecretBox
from shared.core.errors import InvalidError
from shared.fetch import FetchRefused, check_headers, parse_url

MAX_RULES = 16
MAX_SOURCES = 8
#: Stand in a source's address for the key, and for the key without the rule's prefix.
KEY_PLACE, REST_PLACE = "{key}", "{rest}"
#: The longest time that one pull may take, and that an answer may be remembered.
MAX_PULL_SECONDS = 6 * 3600.0
MAX_MISS_SECONDS = 7 * 86_400.0
MAX_WAIT_SECONDS = 60.0

Mode = Literal["wait", "redirect", "background"]
_Url = Annotated[str, StringConstraints(min_length=1, max_length=2048)]
_Prefix = Annotated[str, StringConstraints(max_length=MAX_KEY_BYTES)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class _Terms(_Strict):
    """What a rule says beside its sources."""

    prefix: _Prefix = Field("", description="Of the keys that it counts for.")
    mode: Mode = Field("wait", description="What a GET of an absent key does while it is fetched.")
    wait_seconds: float = Field(10.0, gt=0, le=MAX_WAIT_SECONDS)
    max_bytes: int | None = Field(default=None, ge=0, le=2**63 - 1)
    max_seconds: float = Field(3600.0, gt=0, le=MAX_PULL_SECONDS)
    missing_seconds: float = Field(
        60.0, ge=0, le=MAX_MISS_SECONDS, description="How long a 404 or 410 is remembered."
    )
    failed_seconds: float = Field(
        10.0, ge=0, le=MAX_MISS_SECONDS, description="How long any other failure is."
    )
    tries: int = Field(3, ge=1, le=12, description="Tries per source.")


class OriginSource(_Strict):
    """Where bytes come from.

    `url` is the base to which the key is added, or holds `{key}` or `{rest}` (without the rule's
    prefix). `headers` are sent along and never shown again; null keeps those that a source with
    the same URL has.
    """

    url: _Url
    headers: dict[str, str] | None = None

    @field_validator("url")
    @classmethod
    def _address(cls, url: str) -> str:
        try:
            filled = parse_url(fill(url, key="k", prefix=""))
            static = parse_url(url.replace(KEY_PLACE, "x").replace(REST_PLACE, "y"))
        except FetchRefused as error:
            raise ValueError(str(error)) from None
        if filled.origin != static.origin or "{" in urlsplit(url).netloc:
            raise ValueError("the key stands in the path or the query, not in the host")
        if urlsplit(url).fragment or url.endswith("#"):
            raise ValueError("an origin's address has no fragment")
        return url

    @field_validator("headers")
    @classmethod
    def _sendable(cls, headers: dict[str, str] | None) -> dict[str, str] | None:
        try:
            checked = None if headers is None else check_headers(headers)
        except FetchRefused as error:
            raise ValueError(str(error)) from None
        for name in checked or ():
            # A pull is for all of the object, whatever a GET asked for.
            if name == "range" or name.startswith("if-"):
                raise ValueError(f"the header {name} is not for rules to set")
        return checked


class OriginRule(_Terms):
    """Keys with a prefix, and the sources that are asked for them in order."""

    sources: tuple[OriginSource, ...] = Field(min_length=1, max_length=MAX_SOURCES)


class OriginPolicy(_Strict):
    """Rules in order: the first whose prefix fits a key counts."""

    rules: tuple[OriginRule, ...] = Field(min_length=1, max_length=MAX_RULES)

    def urls(self) -> list[str]:
        """Return an address at each source, for the check of where it leads."""
        return [
            fill(source.url, key="k", prefix="") for rule in self.rules for source in rule.sources
        ]


class StoredSource(_Strict):
    """A source as the bucket keeps it. `sealed` are its headers, None when there are none."""

    url: str
    header_names: tuple[str, ...] = ()
    sealed: str | None = None

    def headers(self, secrets: SecretBox) -> dict[str, str]:
        """Return the headers. Raises PermanentError (`secret_unreadable`) under another key."""
        return {} if self.sealed is None else secrets.open(self.sealed)


class StoredRule(_Terms):
    """A rule as the bucket keeps it."""

    sources: tuple[StoredSource, ...]

    @property
    def id(self) -> str:
        """What pulls and misses belong to: the keys that it counts for and where they come from."""
        facts = "\n".join([self.prefix, *(source.url for source in self.sources)])
        return hashlib.sha256(facts.encode()).hexdigest()[:32]

    def url(self, number: int, key: str) -> str:
        """Return the address of a key at one of the sources."""
        return fill(self.sources[number].url, key=key, prefix=self.prefix)

    def stays_inside(self, key: str) -> bool:
        """Tell whether the addresses of a key have no segment `.` or `..` that the rule has not."""
        return all(
            _dots(self.url(number, key)) == _dots(fill(source.url, key="k", prefix=""))
            for number, source in enumerate(self.sources)
        )


class StoredOrigin(_Strict):
    """The rules as the bucket's column holds them."""

    rules: tuple[StoredRule, ...]

    def rule_for(self, key: str) -> StoredRule | None:
        """Return the rule that counts for a key.

        None also when that would ask for something outside of a source's path: what is left of a
        key without its prefix may begin with `../`.
        """
        rule = next((rule for rule in self.rules if key.startswith(rule.prefix)), None)
        return rule if rule is not None and rule.stays_inside(key) else None

    def rule(self, rule_id: str) -> StoredRule | None:
        """Return the rule of a pull, None when it is not in force any more."""
        return next((rule for rule in self.rules if rule.id == rule_id), None)


def fill(url: str, *, key: str, prefix: str) -> str:
    """Return an address with a key in its place; a base without a place gets it at its end."""
    if KEY_PLACE not in url and REST_PLACE not in url:
        return f"{url}{'' if url.endswith('/') else '/'}{_quoted(key)}"
    path, mark, query = url.partition("?")
    rest = key.removeprefix(prefix)
    for place, value in ((KEY_PLACE, key), (REST_PLACE, rest)):
        path = path.replace(place, _quoted(value))
        query = query.replace(place, quote(value, safe=""))
    return f"{path}{mark}{query}"


def seal(
    policy: OriginPolicy, secrets: SecretBox | None, before: StoredOrigin | None
) -> StoredOrigin:
    """Return what the bucket keeps. Raises InvalidError where headers cannot be sealed."""
    known = {} if before is None else _known(before.rules)
    rules = []
    for rule in policy.rules:
        sources = [_seal_source(source, secrets, known) for source in rule.sources]
        terms = rule.model_dump(exclude={"sources"})
        rules.append(StoredRule(**terms, sources=tuple(sources)))
    return StoredOrigin(rules=tuple(rules))


def _known(rules: Sequence[StoredRule]) -> dict[str, StoredSource]:
    return {source.url: source for rule in rules for source in rule.sources}


def _seal_source(
    source: OriginSource, secrets: SecretBox | None, known: dict[str, StoredSource]
) -> StoredSource:
    before = known.get(source.url)
    if source.headers is None and before is not None:
        return before
    if not source.headers:
        return StoredSource(url=source.url)
    if secrets is None:
        raise InvalidError("headers cannot be kept here", code="origin_headers")
    if before is not None and before.headers(secrets) == source.headers:
        return before
    return StoredSource(
        url=source.url,
        header_names=tuple(sorted(source.headers)),
        sealed=secrets.seal(source.headers),
    )


def _dots(url: str) -> list[str]:
    """Return the segments of a path that servers and clients fold away."""
    return [part for part in url.partition("?")[0].split("/") if part in {".", ".."}]


def _quoted(key: str) -> str:
    return quote(key, safe="/")
