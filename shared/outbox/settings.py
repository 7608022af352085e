"""Every number of the outbox with its unit and its reason, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxSettings:
    """Times are seconds. Tests and demos shorten them; the defaults are for production."""

    #: A row may sit in `dispatching` this long before the scan brings it back.
    dispatch_lease_seconds: float = 30.0
    #: Ids this close to the end of their dispatch lease are not pushed any more.
    dispatch_margin_seconds: float = 5.0
    #: A `dispatched` row is looked for in Redis no sooner than this after its mark.
    dispatched_grace_seconds: float = 5.0
    #: An execution is owned this long without a renewal; three missed beats.
    lease_seconds: float = 45.0
    #: All leases of a process are renewed this often.
    renew_seconds: float = 15.0
    #: Compensation looks this often.
    scan_seconds: float = 2.0
    #: Rows that one page of a scan touches.
    scan_page: int = 500
    #: Once in this time the scans read without their watermark.
    full_scan_seconds: float = 60.0
    #: A lost execution comes back after a random wait between these.
    recovery_min_seconds: float = 2.0
    recovery_max_seconds: float = 30.0
    #: Leases that a task may lose in a row before it fails; above 0 it replaces the kinds' numbers.
    max_recoveries: int = 0
    #: A message missing from Redis must be missing in two scans at least this far apart.
    gone_after_seconds: float = 2.0
    #: Credits are dealt this often ...
    credit_seconds: float = 1.0
    #: ... and lapse after this long.
    credit_lapse_seconds: float = 2.0
    #: The window holds the work of this many seconds, within the two bounds per thread.
    window_seconds: float = 4.0
    window_min_per_thread: int = 2
    window_max_per_thread: int = 1000
    #: A process writes its row in `nodes` this often; it counts as alive for three times as long.
    node_seconds: float = 2.0
    #: Executions claimed ahead of the threads: the work of this many seconds ...
    fetch_ahead_seconds: float = 0.05
    #: ... and at most this many for each thread. 0 claims for idle threads only.
    fetch_ahead_max: int = 64
    #: A claimed execution that no thread has started after this long goes back.
    unstarted_seconds: float = 2.0
    #: A consumer looks into its list this often even when no bell rings.
    fetch_tick_seconds: float = 1.0
    #: A claim without a database is tried for this long, then left to the scans.
    claim_patience_seconds: float = 5.0
    #: A stopped handler is interrupted after this long ...
    interrupt_after_seconds: float = 5.0
    #: ... and the process is not live after this long.
    dead_after_seconds: float = 10.0
    #: One transaction inside `complete()` may take this long.
    complete_seconds: float = 5.0
    #: Ended tasks are purged after this long; 0 keeps them. Failed ones wait for a decision.
    retain_completed_seconds: float = 7 * 86400.0
    retain_cancelled_seconds: float = 30 * 86400.0
    retain_failed_seconds: float = 0.0
    #: Events of tasks and the audit of manual actions are purged after this long; 0 keeps them.
    retain_events_seconds: float = 30 * 86400.0
    retain_audit_seconds: float = 365 * 86400.0
    #: An idempotency key answers with the first task for this long.
    idempotency_seconds: float = 7 * 86400.0
    #: Redis calls of the request path and the heartbeat answer within this.
    redis_timeout_seconds: float = 2.0

    def __post_init__(self) -> None:
        """Refuse pairs that break a protocol."""
        if self.renew_seconds * 2 > self.lease_seconds:
            raise ValueError("renew_seconds must be at most half of lease_seconds")
        if self.dispatch_margin_seconds >= self.dispatch_lease_seconds:
            raise ValueError("dispatch_margin_seconds must be below dispatch_lease_seconds")
        if self.fetch_ahead_max < 0 or self.scan_page < 1:
            raise ValueError("fetch_ahead_max must not be negative, scan_page must be positive")
