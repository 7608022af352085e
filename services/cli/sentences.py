"""What an error says to a person: one sentence with its cause, and the exit code it becomes."""

from __future__ import annotations

import sqlalchemy as sa

from shared.core.errors import BloxError, ConflictError, InvalidError, NotFoundError
from shared.runtime.database import driver_says

#: Exit codes. 0 is done.
FAILED, USAGE, NOT_FOUND, CONFLICT = 1, 2, 3, 4

#: What becomes a sentence. Anything else is a bug, and its traceback is wanted.
EXPECTED = (BloxError, sa.exc.DBAPIError, sa.exc.TimeoutError, OSError)


def sentence(error: BaseException) -> str:
    """Return what happened, without class names, and with the reason where one is known."""
    if isinstance(error, sa.exc.SQLAlchemyError):
        return f"the database: {driver_says(error)}"
    if isinstance(error, OSError) and not isinstance(error, BloxError):
        about = f"{error.filename}: " if error.filename else ""
        return f"{about}{error.strerror or error}"
    text = str(error)
    reason = _reason(error)
    return text if not reason or reason in text else f"{text}: {reason}"


def exit_code(error: BaseException) -> int:
    """Return the exit code that tells scripts which kind of error it was."""
    if isinstance(error, NotFoundError):
        return NOT_FOUND
    if isinstance(error, ConflictError):
        return CONFLICT
    return USAGE if isinstance(error, InvalidError) else FAILED


def _reason(error: BaseException) -> str:
    if not isinstance(error, BloxError):
        return ""
    if told := error.facts.get("reason"):
        return str(told)
    cause = error.__cause__
    if isinstance(cause, OSError):
        return cause.strerror or str(cause)
    return sentence(cause) if isinstance(cause, EXPECTED) else ""
