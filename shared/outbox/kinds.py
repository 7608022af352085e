"""Kinds of task: a name, a queue, a typed and versioned payload, and what happens around its end.

A `Kind` is declared once and registered in every process that may enqueue or end such tasks; the
handler is attached only in the worker that runs it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pydantic
from sqlalchemy.orm import Session

from shared.core.errors import InvalidError, PermanentError
from shared.core.outcomes import Fail, Retry, Snooze
from shared.outbox.policy import RetryPolicy
from shared.outbox.records import check_depth

if TYPE_CHECKING:
    from shared.outbox.execution import Execution

P = TypeVar("P", bound=pydantic.BaseModel)

QUEUE_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}\Z")
KIND_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}\.[a-z][a-z0-9_-]{0,30}\Z")
#: Bytes of JSON that a payload may have: ids and parameters, never content.
MAX_PAYLOAD_BYTES = 64 * 1024
#: The code of a payload that a newer process has written than this one is.
PAYLOAD_NEWER = "payload_newer"

Answer = None | Retry | Snooze | Fail | dict[str, Any]
Handler = Callable[["Execution", Any], Answer]


@dataclass(frozen=True, slots=True)
class EndedTask:
    """What a hook sees of the task that ends or comes back: plain facts of its row."""

    id: int
    kind: str
    queue: str
    tenant_id: str
    payload: pydantic.BaseModel
    attempt: int
    error_code: str | None
    error_detail: str | None


#: Takes FOR UPDATE locks on the task's domain rows, ascending, before the task row is locked.
Locks = Callable[[Session, Any], None]
#: Called in the transaction of every end other than completed: (session, task, outcome).
OnEnd = Callable[[Session, EndedTask, str], None]
#: Called in the transaction of a manual retry; raises ConflictError to refuse.
OnRetry = Callable[[Session, EndedTask], None]


@dataclass(frozen=True, kw_only=True)
class Kind(Generic[P]):
    """One kind of task.

    `name` is `<queue>.<verb>`; `payload` a Pydantic model of `version`; `upgrades` maps an older
    version to a function that turns its payload into the next version's. `time_limit_seconds`
    bounds one execution. `max_recoveries` bounds leases lost in a row. `locks`, `on_end` and
    `on_retry` keep domain rows in step (see the aliases above). `events` records every transition.
    """

    name: str
    payload: type[P]
    queue: str = ""
    version: int = 1
    upgrades: Mapping[int, Callable[[dict[str, Any]], dict[str, Any]]] = field(default_factory=dict)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    time_limit_seconds: float = 600.0
    max_recoveries: int = 5
    locks: Locks | None = None
    on_end: OnEnd | None = None
    on_retry: OnRetry | None = None
    events: bool = False

    def __post_init__(self) -> None:
        """Refuse names that could not be a queue in Redis or a label in metrics."""
        if not self.queue:
            object.__setattr__(self, "queue", self.name.partition(".")[0])
        if not KIND_NAME.match(self.name):
            raise ValueError(f"kind {self.name!r} is not <queue>.<verb>")
        if not QUEUE_NAME.match(self.queue):
            raise ValueError(f"queue {self.queue!r} is not a queue name")
        if (self.on_end is None) != (self.locks is None):
            raise ValueError(f"kind {self.name!r}: on_end and locks belong together")

    def dump(self, payload: P | Mapping[str, Any]) -> str:
        """Validate a payload and return the JSON that the row keeps.

        Raises InvalidError with the first faults when it does not fit the model.
        """
        if not isinstance(payload, self.payload):
            try:
                payload = self.payload.model_validate(payload)
            except pydantic.ValidationError as error:
                raise InvalidError(
                    f"payload of {self.name}: {error.errors(include_url=False)[:3]}", kind=self.name
                ) from error
        try:
            body = payload.model_dump_json()
            check_depth(body)
        except ValueError as error:
            raise InvalidError(f"payload of {self.name} is no JSON: {error}") from error
        # Counted only where it may matter: a character has at most four bytes.
        if 4 * len(body) > MAX_PAYLOAD_BYTES and len(body.encode()) > MAX_PAYLOAD_BYTES:
            raise InvalidError(f"payload of {self.name} is larger than {MAX_PAYLOAD_BYTES} bytes")
        return f'{{"v":{self.version},"p":{body}}}'

    def load(self, text: str | bytes | Mapping[str, Any]) -> P:
        """Return the payload of a row, brought up to this version.

        Raises PermanentError when it cannot be read: another try would not help.
        """
        try:
            envelope = text if isinstance(text, Mapping) else json.loads(text)
            version, body = int(envelope["v"]), envelope["p"]
            while version < self.version:
                body = self.upgrades[version](body)
                version += 1
            if version > self.version:
                raise PermanentError(
                    f"payload of {self.name} is version {version}, newer than {self.version}",
                    code=PAYLOAD_NEWER,
                )
            return self.payload.model_validate(body)
        except PermanentError:
            raise
        except Exception as error:
            # Upgrades and validators are code too. Who ends the task must get past them.
            raise PermanentError(
                f"payload of {self.name} cannot be read: {error}", code="payload_unreadable"
            ) from error


class Kinds:
    """The kinds that a process knows, and the handlers of those that it runs."""

    def __init__(self) -> None:
        self._kinds: dict[str, Kind[Any]] = {}
        self._handlers: dict[str, Handler] = {}

    def register(self, kind: Kind[Any]) -> None:
        """Make a kind known. The same one twice is fine, another of its name is an error."""
        known = self._kinds.setdefault(kind.name, kind)
        if known is not kind:
            raise ValueError(f"kind {kind.name!r} is registered already")

    def handle(self, kind: Kind[Any], handler: Handler) -> None:
        """Attach the handler that runs this kind here."""
        self.register(kind)
        if self._handlers.setdefault(kind.name, handler) is not handler:
            raise ValueError(f"kind {kind.name!r} has a handler already")

    def find(self, name: str) -> Kind[Any] | None:
        """Return a kind by name, None when this process does not know it."""
        return self._kinds.get(name)

    def get(self, kind: Kind[Any] | str) -> Kind[Any]:
        """Return a kind by name; InvalidError when this process does not know it."""
        if isinstance(kind, Kind):
            return kind
        found = self._kinds.get(kind)
        if found is None:
            raise InvalidError(f"no kind named {kind!r} is registered here", kind=kind)
        return found

    def with_events(self) -> tuple[str, ...]:
        """Return the names of the kinds whose every transition is recorded."""
        return tuple(kind.name for kind in self._kinds.values() if kind.events)

    def handler(self, name: str) -> Handler | None:
        """Return the handler of a kind, None when it is not run here."""
        return self._handlers.get(name)

    def queues(self) -> set[str]:
        """Return the queues of all kinds that have a handler here."""
        return {self._kinds[name].queue for name in self._handlers}
