"""The errors of the whole product, drawn as one tree.

BloxError
├── TransientError            the retry policy tries again
│   ├── ThrottledError        ... not before `retry_after_seconds`
│   ├── ResourceBusy          ... not before the resource has a place; counts no attempt
│   └── UnavailableError      a database, channel or supplier does not answer
├── PermanentError            the task fails
│   └── CorruptError          bytes that are not what they should be
├── SupersededError           something newer won: the task ends cancelled, nothing is written
├── RequestError              a caller asked for something that cannot be
│   ├── InvalidError          malformed (HTTP 400)
│   ├── UnauthorizedError     nobody we know (401)
│   ├── ForbiddenError        not theirs to do (403)
│   ├── NotFoundError         not there, or not theirs to see (404)
│   ├── ConflictError         the state does not allow it (409)
│   ├── PreconditionError     a condition of the request does not hold (412)
│   ├── TooLargeError         over a limit (413)
│   ├── SwitchedOffError      this deployment does not have that service (501)
│   └── BacklogError          too much work is waiting (429)
└── StopError                 this execution must stop; no policy reads it
    ├── LeaseLost             another may own the task by now
    ├── CancelRequested       a user cancelled it
    ├── SlotLost              it holds its place no more; the task goes on elsewhere
    ├── TimeLimitExceeded     it ran for longer than its kind allows
    └── ShuttingDown          the process is going away; the task goes on elsewhere
"""

from __future__ import annotations


class BloxError(Exception):
    """Root of all errors raised on purpose; keyword facts travel with it into logs and answers."""

    code = "error"

    def __init__(self, message: str = "", *, code: str | None = None, **facts: object) -> None:
        super().__init__(message or (type(self).__doc__ or "").split("\n", 1)[0])
        if code is not None:
            self.code = code
        self.facts = facts


class TransientError(BloxError):
    """It may work later."""

    code = "transient"


class ThrottledError(TransientError):
    """The other side asked for patience."""

    code = "throttled"

    def __init__(
        self,
        message: str = "",
        *,
        retry_after_seconds: float = 1.0,
        code: str | None = None,
        **facts: object,
    ) -> None:
        super().__init__(message, code=code, **facts)
        self.retry_after_seconds = retry_after_seconds


class ResourceBusy(TransientError):
    """What it needs is full or broken.

    `resource` names it. `after_seconds` 0 waits for a place that is given back, more than that is
    asked again then at the latest.
    """

    code = "parked"

    def __init__(
        self,
        message: str = "",
        *,
        resource: str,
        after_seconds: float = 0.0,
        code: str | None = None,
        **facts: object,
    ) -> None:
        super().__init__(message, code=code, **facts)
        self.resource = resource
        self.after_seconds = after_seconds


class UnavailableError(TransientError):
    """The other side does not answer."""

    code = "unavailable"


class PermanentError(BloxError):
    """It will not work however often it is tried."""

    code = "permanent"


class CorruptError(PermanentError):
    """The bytes are not what they should be."""

    code = "corrupt"


class SupersededError(BloxError):
    """Something newer has won."""

    code = "superseded"


class RequestError(BloxError):
    """The request cannot be carried out as it stands."""

    code = "request"


class InvalidError(RequestError):
    """The request is malformed."""

    code = "invalid"


class UnauthorizedError(RequestError):
    """The caller is nobody we know."""

    code = "unauthorized"


class ForbiddenError(RequestError):
    """The caller may not do this."""

    code = "forbidden"


class NotFoundError(RequestError):
    """It is not there."""

    code = "not_found"


class ConflictError(RequestError):
    """The present state does not allow it."""

    code = "conflict"


class PreconditionError(RequestError):
    """A condition of the request does not hold."""

    code = "precondition_failed"


class TooLargeError(RequestError):
    """It is over a limit."""

    code = "too_large"


class SwitchedOffError(RequestError):
    """This deployment does not have the service that would do it."""

    code = "switched_off"


class BacklogError(RequestError):
    """Too much work is waiting already."""

    code = "backlog_full"

    def __init__(
        self,
        message: str = "",
        *,
        retry_after_seconds: float = 5.0,
        code: str | None = None,
        **facts: object,
    ) -> None:
        super().__init__(message, code=code, **facts)
        self.retry_after_seconds = retry_after_seconds


class StopError(BloxError):
    """This execution must stop now."""

    code = "stopped"


class LeaseLost(StopError):
    """The execution no longer owns its task."""

    code = "lease_lost"


class CancelRequested(StopError):
    """A user cancelled the task."""

    code = "cancelled"


class SlotLost(StopError):
    """The execution holds its place on a resource no more."""

    code = "slot_lost"


class TimeLimitExceeded(StopError):
    """The execution ran past its time limit."""

    code = "timeout"


class ShuttingDown(StopError):
    """The process is stopping and gives its work back."""

    code = "shutdown"
