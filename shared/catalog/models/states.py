"""The states of the catalogue's rows, one word each, as the columns hold them."""

from __future__ import annotations

from enum import StrEnum


class VersionState(StrEnum):
    """Where one generation of an object stands."""

    PENDING = "pending"
    """Acknowledged; readable from staging until its upload task has stored it."""
    REVIEWING = "reviewing"
    """Acknowledged; not readable before its review has passed."""
    BLOCKED = "blocked"
    """Rejected by its review; never readable."""
    STORED = "stored"
    """The current version: its blob has a stored location and a reference of this version."""
    REPLACED = "replaced"
    """Was stored; a newer one is, and the reference is gone."""
    FAILED = "failed"
    """Its upload failed for good or was cancelled; still readable from staging, can be retried."""
    SUPERSEDED = "superseded"
    """Overwritten before it was stored."""
    DELETED = "deleted"
    """Removed by a DELETE."""


#: Readable: a GET serves the newest generation in one of these.
SERVED = frozenset({VersionState.PENDING, VersionState.FAILED, VersionState.STORED})
#: Not done: a newer write supersedes these.
UNFINISHED = frozenset({VersionState.PENDING, VersionState.REVIEWING, VersionState.FAILED})
#: What a DELETE removes.
LIVING = SERVED | {VersionState.REVIEWING}


class BlobState(StrEnum):
    """Where one content stands. `live` and `condemned` hold the live slot of their content."""

    STAGED = "staged"
    LIVE = "live"
    CONDEMNED = "condemned"
    DELETING = "deleting"
    DELETED = "deleted"


class LocationState(StrEnum):
    """Where one copy of a blob on one channel stands."""

    INTENT = "intent"
    STORED = "stored"
    CONDEMNED = "condemned"
    DELETE_FAILED = "delete_failed"
    TOMBSTONE = "tombstone"


class ReviewState(StrEnum):
    """Where the review of one version stands. `doubtful` waits for a person."""

    OPEN = "open"
    DOUBTFUL = "doubtful"
    PASSED = "passed"
    REJECTED = "rejected"
    SUPERSEDED = "superseded"
    FAILED = "failed"
    """Only of what has passed before: reviewers could not judge it again; it stays as it was."""


class ReviewRunState(StrEnum):
    """Where a run of re-reviews stands. `planned`: all of its reviews are made."""

    RUNNING = "running"
    PLANNED = "planned"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SUPERSEDED = "superseded"
    """The bucket's rules have changed since: none of its reviews decides anything any more."""


class StepOutcome(StrEnum):
    """What one reviewer said. `waiting` and `retry` are no answers yet."""

    PASS = "pass"  # noqa: S105 - an outcome
    REJECT = "reject"
    DOUBTFUL = "doubtful"
    WAITING = "waiting"
    RETRY = "retry"
    ERROR = "error"


class SessionState(StrEnum):
    """Where a resumable upload stands."""

    OPEN = "open"
    """Takes parts."""
    COMPLETING = "completing"
    """Frozen; its task makes a version of the parts."""
    DONE = "done"
    """The version is made; its result is kept."""
    FAILED = "failed"
    """Its task ended without a version; the result says why. The parts stay for a manual retry."""
    ABORTED = "aborted"
    """Given up; on its way out."""


class DeliveryState(StrEnum):
    """Where one event on its way to one address stands."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"
    """Given up; it can be sent again."""


class HolderKind(StrEnum):
    """Who may hold a reference to a blob."""

    VERSION = "version"
    HOLD = "hold"
    BACKUP = "backup"
    COPY = "copy"
    QUARANTINE = "quarantine"
    """A blocked version that was stored before, until its `staging_until`."""


class HoldState(StrEnum):
    """Where a hold stands. Only an active one keeps the content."""

    ACTIVE = "active"
    RELEASED = "released"
    EXPIRED = "expired"


class RemovalState(StrEnum):
    """Where a deletion by prefix stands."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class CopyState(StrEnum):
    """Where a copy over channels stands."""

    PENDING = "pending"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class PullState(StrEnum):
    """Where one pull from an origin stands."""

    OPEN = "open"
    STORED = "stored"
    """Its bytes are a version of the key."""
    LOST = "lost"
    """Somebody has put or deleted the key meanwhile: the bytes were dropped."""
    FAILED = "failed"
    CANCELLED = "cancelled"


class BackupRunState(StrEnum):
    """Where one backup run stands. Only a complete one can be restored from."""

    OPEN = "open"
    COMPLETE = "complete"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PRUNED = "pruned"
    FOLLOWING = "following"
    """Never ends: what was copied as it became live."""


class BackupItemState(StrEnum):
    """Where one content of one run stands. A lost one could be read nowhere."""

    OPEN = "open"
    DONE = "done"
    LOST = "lost"
    FAILED = "failed"
    CANCELLED = "cancelled"


class BackupContentState(StrEnum):
    """Where bytes on a backup target stand."""

    INTENT = "intent"
    STORED = "stored"
    SPARE = "spare"
    """Right, as older manifests name it; runs name another copy of the same content."""
    DAMAGED = "damaged"
    """Found missing or other bytes: never named again, and looked at again by the audit."""
    CONDEMNED = "condemned"
    DELETE_FAILED = "delete_failed"
    TOMBSTONE = "tombstone"


class LossState(StrEnum):
    """Where one lost copy stands. `unrecoverable` and `failed` ones are asked again each day."""

    OPEN = "open"
    RESTORED = "restored"
    PRESENT = "present"
    """It was there after all."""
    SUPERSEDED = "superseded"
    """Nothing needs the content any more."""
    UNRECOVERABLE = "unrecoverable"
    FAILED = "failed"


class RestoreState(StrEnum):
    """Where one restore stands."""

    OPEN = "open"
    COMPLETE = "complete"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ReplicaState(StrEnum):
    """Where the work of having a blob on a channel stands; `completed` is never undone by an end.

    `gone`: the blob is no longer live, or no rule asks for the copy.
    """

    PENDING = "pending"
    COMPLETED = "completed"
    FAILED = "failed"
    GONE = "gone"


class RuleState(StrEnum):
    """Whether a bucket's rule stands. `removed` is being let go of, `ended` is a record."""

    ACTIVE = "active"
    REMOVED = "removed"
    ENDED = "ended"
