"""A new epoch of the places after Redis lost the old one: who holds what stands in the rows."""

from __future__ import annotations

import json
from typing import Any

import structlog

from shared.core.failpoints import failpoint
from shared.outbox.context import OutboxContext
from shared.outbox.db import Line
from shared.outbox.ports import RESERVED
from shared.outbox.statements import park as statements

_log = structlog.get_logger("outbox.places")


def rebuild(context: OutboxContext, *, line: Line | None = None) -> bool:
    """Enter the tokens of all that runs and begin an epoch; False when another does it.

    The rows are read after the right was taken: whoever wrote a token later finds at its
    confirmation that its epoch is over. Raises UnavailableError.
    """
    places = context.places
    if places is None:
        return False
    right = places.begin_rebuild()
    if right is None:
        return False
    failpoint("rebuild.locked")
    text = context.db.dialect.sql(statements.HELD)

    def read(cursor: Any) -> list[tuple[str, str]]:
        cursor.execute(text)
        held = [json.loads(row[1]) for row in cursor.fetchall()]
        return [
            (name, token)
            for slots in held
            for name, token in slots.items()
            if not token.startswith(RESERVED)
        ]

    tokens = context.db.run(read, line=line, read_only=True)
    failpoint("rebuild.read")
    done = places.enter(right, tokens)
    if done:
        _log.info("places_rebuilt", tokens=len(tokens))
    return done
