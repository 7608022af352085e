"""What makes a resumable upload: sizes, names, and which parts count. Pure."""

from __future__ import annotations

import datetime as dt
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from shared.catalog.conditions import UNCONDITIONAL, Conditions
from shared.catalog.lifecycle import UNTIMED, Lifetime
from shared.catalog.models import UploadPart
from shared.core.errors import InvalidError

#: Parts of one upload, as S3 allows; their numbers begin with 1.
MAX_PARTS = 10_000
MAX_OPERATION_CHARACTERS = 191
_MIB = 1024 * 1024
#: The size of parts that is proposed to a client who asks for none.
DEFAULT_PART_BYTES = 8 * _MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadLimits:
    """What a deployment allows; the last part of an upload may be smaller than `min_part_bytes`.

    `expiry_seconds` after its last sign of life an open session is given up. `max_open` are the
    open sessions of one tenant.
    """

    max_object_bytes: int
    min_part_bytes: int
    max_part_bytes: int
    expiry_seconds: float
    max_open: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpec:
    """What a client wants to upload, checked. `size` and `sha256` are of the whole, if known."""

    operation_id: str
    key: str
    size: int | None = None
    sha256: str | None = None
    content_type: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    part_bytes: int | None = None
    conditions: Conditions = UNCONDITIONAL
    lifetime: Lifetime = UNTIMED

    def fingerprint(self, bucket: str) -> str:
        """Return what makes two requests under one operation id the same."""
        return _digest({"bucket": bucket, **asdict(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedPart:
    """A part as the client knows it; what it does not say is not compared."""

    number: int
    etag: str | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteOrder:
    """What a client says of the whole when it has sent all parts.

    `parts` are those that count, in order; without it all do, and none may be missing in between.
    """

    parts: tuple[WantedPart, ...] | None = None
    size: int | None = None
    sha256: str | None = None

    @property
    def fingerprint(self) -> str | None:
        """What makes two completions the same, None for one that demands nothing."""
        return None if self == CompleteOrder() else _digest(asdict(self))


def check_operation_id(operation_id: str) -> str:
    """Return an operation id; InvalidError (`operation_id_invalid`) when it cannot be one."""
    is_long = not 1 <= len(operation_id) <= MAX_OPERATION_CHARACTERS
    if is_long or not operation_id.isprintable() or operation_id != operation_id.strip():
        raise InvalidError(
            f"an operation id has 1 to {MAX_OPERATION_CHARACTERS} printable characters and no "
            "blank at an end",
            code="operation_id_invalid",
        )
    return operation_id


def choose_part_bytes(size: int | None, wanted: int | None, limits: UploadLimits) -> int:
    """Return the size in which the content is to be cut, so that its parts are not too many.

    Raises InvalidError (`part_bytes_invalid`) for a wanted size that cannot be used.
    """
    least = (
        limits.min_part_bytes if size is None else max(limits.min_part_bytes, -(-size // MAX_PARTS))
    )
    if wanted is None:
        whole = -(-least // _MIB) * _MIB
        return max(least, min(max(DEFAULT_PART_BYTES, whole), limits.max_part_bytes))
    if not least <= wanted <= limits.max_part_bytes:
        raise InvalidError(
            f"parts have {least} to {limits.max_part_bytes} bytes here, not {wanted}",
            code="part_bytes_invalid",
            min_part_bytes=least,
            max_part_bytes=limits.max_part_bytes,
        )
    return wanted


def choose_parts(
    there: Sequence[UploadPart],
    order: CompleteOrder,
    *,
    declared_size: int | None,
    min_part_bytes: int,
) -> list[UploadPart]:
    """Return the parts that make the whole, in order.

    Raises InvalidError (`part_missing`, `part_mismatch`, `part_too_small`, `size_mismatch`); the
    client can mend what is wrong and complete again.
    """
    chosen = _all_of(there) if order.parts is None else _named(there, order.parts)
    for part in chosen[:-1]:
        if part.size_bytes < min_part_bytes:
            raise InvalidError(
                f"part {part.number} has {part.size_bytes} bytes: only the last may have fewer "
                f"than {min_part_bytes}",
                code="part_too_small",
                number=part.number,
                min_part_bytes=min_part_bytes,
            )
    size = sum(part.size_bytes for part in chosen)
    for declared in (declared_size, order.size):
        if declared is not None and declared != size:
            raise InvalidError(
                f"the parts have {size} bytes in all, {declared} were declared",
                code="size_mismatch",
                expected=declared,
                actual=size,
            )
    return chosen


def multipart_etag(md5s: Sequence[str]) -> str:
    """Return the ETag of content in parts, as S3 makes it: the MD5 of their MD5s, and how many."""
    whole = hashlib.md5(b"".join(map(bytes.fromhex, md5s)), usedforsecurity=False)
    return f"{whole.hexdigest()}-{len(md5s)}"


def conditions_json(conditions: Conditions) -> dict[str, Any] | None:
    """Return what a session row keeps of conditions."""
    return None if conditions == UNCONDITIONAL else asdict(conditions)


def conditions_of(kept: Mapping[str, Any] | None) -> Conditions:
    """Return the conditions that a session row keeps."""
    if kept is None:
        return UNCONDITIONAL
    return Conditions(
        **{name: None if tags is None else tuple(tags) for name, tags in kept.items()}
    )


def lifetime_json(lifetime: Lifetime) -> dict[str, Any] | None:
    """Return what a session row keeps of how long its object is to live."""
    if lifetime == UNTIMED:
        return None
    at = None if lifetime.at is None else lifetime.at.isoformat()
    return {"at": at, "seconds": lifetime.seconds}


def lifetime_of(kept: Mapping[str, Any] | None) -> Lifetime:
    """Return the lifetime that a session row keeps."""
    if kept is None:
        return UNTIMED
    at = None if kept["at"] is None else dt.datetime.fromisoformat(kept["at"])
    return Lifetime(at=at, seconds=kept["seconds"])


def _all_of(there: Sequence[UploadPart]) -> list[UploadPart]:
    if not there:
        raise InvalidError("no part has come yet", code="part_missing", number=1)
    for expected, part in enumerate(there, start=1):
        if part.number != expected:
            raise InvalidError(
                f"part {expected} has not come", code="part_missing", number=expected
            )
    return list(there)


def _named(there: Sequence[UploadPart], wanted: Sequence[WantedPart]) -> list[UploadPart]:
    known = {part.number: part for part in there}
    numbers = [one.number for one in wanted]
    if not numbers or any(late <= early for early, late in itertools.pairwise(numbers)):
        raise InvalidError("parts are named once, by growing numbers", code="parts_invalid")
    chosen = []
    for one in wanted:
        part = known.get(one.number)
        if part is None:
            raise InvalidError(
                f"part {one.number} has not come", code="part_missing", number=one.number
            )
        for what, said, has in (("etag", one.etag, part.md5), ("sha256", one.sha256, part.sha256)):
            if said is not None and said != has:
                raise InvalidError(
                    f"part {one.number} has another {what}",
                    code="part_mismatch",
                    number=one.number,
                    expected=said,
                    actual=has,
                )
        chosen.append(part)
    return chosen


def _digest(facts: Mapping[str, Any]) -> str:
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
