"""What the handler works with, and one execution's way through the protocol."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from services.origin.hosts import Hosts
from services.origin.rules import Plan
from shared.catalog.context import Catalogue
from shared.catalog.origins.commit import PullJob
from shared.catalog.origins.segments import Segment
from shared.catalog.secret_box import SecretBox
from shared.core.errors import ResourceBusy
from shared.fetch import Fetcher, FetchLimits
from shared.outbox import Execution
from shared.outbox.db import Database
from shared.outbox.resources import Resources
from shared.storage.staging import Staging

#: Bytes after which what has come is kept for a resume.
SEGMENT_BYTES = 64 * 1024 * 1024
#: A shorter stretch is not worth a file of its own when a connection breaks.
LEAST_SEGMENT_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Deps:
    """What the handler works with.

    `max_bytes` bounds every object of the deployment, `max_running` the executions that ask one
    host for one bucket, over all processes, if there are `resources`.
    """

    db: Database
    catalogue: Catalogue
    staging: Staging
    secrets: SecretBox
    fetcher: Fetcher
    limits: FetchLimits = field(default_factory=FetchLimits)
    hosts: Hosts = field(default_factory=Hosts)
    resources: Resources | None = None
    max_running: int = 0
    max_bytes: int | None = None
    reserve_bytes: int = 0
    segment_bytes: int = SEGMENT_BYTES
    least_segment_bytes: int = LEAST_SEGMENT_BYTES


@dataclass(slots=True)
class Pull:
    """One execution. `failed_now` are the sources that failed in it, and why."""

    execution: Execution
    deps: Deps
    job: PullJob
    plan: Plan
    failed_now: dict[int, str] = field(default_factory=dict)
    #: Sources whose host is asked by as many as may, over all processes, or silent.
    full: dict[int, ResourceBusy] = field(default_factory=dict)
    #: Seconds that sources asked to be left alone for.
    patience: dict[int, float] = field(default_factory=dict)

    def take_segments(self, segments: tuple[Segment, ...]) -> None:
        """Go by what the rows name now."""
        self.job = replace(self.job, segments=segments)

    def keep(self, plan: Plan) -> None:
        """Keep a plan in the task's row, and only then go by it."""
        received = sum(segment.size for segment in self.job.segments)
        self.execution.checkpoint(plan.dump(), received)
        self.plan = plan
