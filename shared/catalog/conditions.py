"""Conditions of a write, judged in the transaction that commits it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from shared.core.errors import PreconditionError

ANY = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """`If-Match` and `If-None-Match` of a write: ETags without quotes, or ``*`` for any.

    None means that the header was absent. An empty tuple matches nothing.
    """

    if_match: tuple[str, ...] | None = None
    if_none_match: tuple[str, ...] | None = None

    def judge(self, etag: str | None) -> None:
        """Compare with the ETag that a GET would show now, None when it would find nothing.

        Raises PreconditionError when a condition does not hold.
        """
        if self.if_match is not None and not _matches(self.if_match, etag):
            raise PreconditionError("If-Match does not hold", condition="If-Match", etag=etag)
        if self.if_none_match is not None and _matches(self.if_none_match, etag):
            raise PreconditionError(
                "If-None-Match does not hold", condition="If-None-Match", etag=etag
            )


#: No condition at all.
UNCONDITIONAL = Conditions()


def _matches(wanted: tuple[str, ...], etag: str | None) -> bool:
    return etag is not None and (ANY in wanted or etag in wanted)
