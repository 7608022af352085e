"""A process whose executions use one resource with a limit: held, parked, woken by hand."""

from __future__ import annotations

from typing import Any

from shared.coordination.slots import RedisSlots
from shared.core.outcomes import Snooze
from shared.outbox.execution import Execution
from shared.outbox.kinds import Kind
from shared.outbox.parked_scan import ParkedScan
from tests.support.outbox import Bench, Touch

NAME = "channel:a"
KIND = Kind(name="mail.send", payload=Touch, events=True)


class Limit:
    """The same number for every resource, to be changed."""

    def __init__(self, value: int) -> None:
        self.value = value

    def limit(self, name: str) -> int:
        """Return it."""
        return self.value


class Stage:
    """A process with places and limits."""

    def __init__(self, url: str, redis_url: str, namespace: str, limit: Limit, node: str) -> None:
        self.limit = limit
        self.slots = RedisSlots(redis_url, namespace, slot_seconds=8.0)
        self.bench = Bench(
            url,
            redis_url,
            namespace=namespace,
            node=node,
            kinds=[KIND],
            places=self.slots,
            limits=limit,
        )
        self.scan = ParkedScan(self.bench.context, self.bench.context.db.line())

    def put(self, tenant_id: str = "acme") -> int:
        """Enqueue one task."""
        return self.bench.put(KIND, tenant_id=tenant_id)

    def hold(self, execution: Execution) -> Any:
        """Hold a place for a block."""
        return self.bench.resources.hold(execution, NAME, limit=self.limit.value)

    def park(self, task_id: int, seconds: float = 0.0) -> None:
        """Claim a task and park it."""
        execution = self.bench.run(task_id)
        self.bench.answers.settle(execution, Snooze(seconds, "full", resource=NAME))

    def parked(self, count: int, tenant_id: str = "acme") -> list[int]:
        """Return tasks that are parked while the places are taken by nobody's tokens."""
        ids = [self.put(tenant_id) for _ in range(count)]
        with self.full():
            for task_id in ids:
                self.park(task_id)
        return ids

    def full(self) -> Full:
        """Take every place for the length of a block."""
        return Full(self)

    def state(self, task_id: int) -> str:
        """Return the state of a task."""
        return str(self.bench.read(task_id).state)

    def close(self) -> None:
        """Let go of every connection."""
        self.bench.close()
        self.slots.close()


class Full:
    """Takes every place for the length of a block."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def __enter__(self) -> None:
        slots = self.stage.slots
        self.tokens: list[str] = []
        if slots.in_use(NAME) is None:
            right = slots.begin_rebuild()
            assert right is not None
            assert slots.enter(right, [])
        while (
            slots.acquire(NAME, f"x{len(self.tokens)}", limit=self.stage.limit.value, task_id=0)[0]
            == "held"
        ):
            self.tokens.append(f"x{len(self.tokens)}")

    def __exit__(self, *_: object) -> None:
        for token in self.tokens:
            self.stage.slots.release(NAME, token)
