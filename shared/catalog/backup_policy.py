"""What a bucket says of its backups: where to, how often, for how long. Pure data."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

#: A wait that no database's clock could hold would be one without an end.
_MAX_SECONDS = 10 * 366 * 86_400.0
#: How long what no run names stays on the target, where nothing else is said.
DEFAULT_GRACE_SECONDS = 86_400.0
#: How long a run waits for channels that do not answer and that it would read from.
LEAST_PATIENCE_SECONDS = 600.0
MOST_PATIENCE_SECONDS = 6 * 3600.0
#: Runs cannot follow each other faster than the scheduler looks.
_LEAST_INTERVAL_SECONDS = 60


class BackupPolicy(BaseModel):
    """Backups of a bucket to one channel.

    `runs`: a run every `interval_seconds`, aligned to UTC. `continuous`: contents are also copied
    as they become live, and the runs only write manifests. A run is kept while it is among the
    newest `keep_runs`, and no longer than `keep_days`; the newest complete one always is. What no
    run needs any more stays on the target for `grace_seconds`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: Annotated[str, StringConstraints(pattern=r"^[ -~]{1,64}$")] = Field(
        description="The channel that keeps the backups; none of the bucket's own."
    )
    mode: Literal["runs", "continuous"] = "runs"
    interval_seconds: int = Field(86_400, ge=_LEAST_INTERVAL_SECONDS, le=366 * 86_400)
    keep_runs: int | None = Field(default=None, ge=1, le=100_000)
    keep_days: float | None = Field(default=None, gt=0, le=36_600)
    grace_seconds: float = Field(
        default=DEFAULT_GRACE_SECONDS, ge=0, le=_MAX_SECONDS, allow_inf_nan=False
    )

    @property
    def patience_seconds(self) -> float:
        """How long a run waits for contents that cannot be read now: as long as to the next one."""
        longest = min(MOST_PATIENCE_SECONDS, float(self.interval_seconds))
        return max(LEAST_PATIENCE_SECONDS, longest)

    @property
    def longest_grace_seconds(self) -> float:
        """How long what no run names stays at least.

        What is copied as it becomes live is named by the next run only, an interval later.
        """
        if self.mode == "continuous":
            return max(self.grace_seconds, 2.0 * self.interval_seconds)
        return self.grace_seconds

    @model_validator(mode="after")
    def _check(self) -> BackupPolicy:
        if self.keep_days is not None and self.keep_days * 86_400 < self.interval_seconds:
            raise ValueError("keep_days is shorter than the interval: no run would ever be kept")
        return self
