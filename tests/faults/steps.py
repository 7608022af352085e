"""Every step of the protocols at which a process dies in a test, in the order of the protocols.

A run is one way of work through a queue; the numbers are those of the protocols. What a claim, a
fenced commit and a message mean is the same in every queue, so they stand where they come first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

#: Failpoint -> what has been done when the process dies there.
Run: TypeAlias = Mapping[str, str]

REQUESTS: dict[str, Run] = {
    "put": {
        "storage.staging": "a, the bytes are under way to staging",
        "api.put.staged": "a",
        "api.put.written": "b, before its COMMIT",
        "api.put.committed": "b",
    },
    "dispatched": {
        "dispatch.before_push": "b, the message is not in Redis",
        "dispatch.before_mark": "b, the row does not say so yet",
    },
    "instant": {
        "api.write.written": "c, before its COMMIT",
        "api.write.committed": "c",
    },
    "copy": {
        "api.copy.written": "copy, before its COMMIT",
        "api.copy.committed": "copy",
    },
    "delete": {
        "api.delete.written": "delete 1, before its COMMIT",
        "api.delete.committed": "delete 1",
    },
    "cancel": {"cancel.after": "a cancel has been committed"},
    "begin": {
        "api.write.written": "the session, before its COMMIT",
        "api.write.committed": "the session",
    },
    "part": {
        "uploads.part_staged": "a part in staging",
        "uploads.part_written": "a part's row, before its COMMIT",
        "uploads.part_committed": "a part's row, the one before it is not removed",
    },
    "complete": {
        "api.write.written": "frozen, before its COMMIT",
        "uploads.frozen": "frozen",
    },
    "abort": {
        "uploads.aborted": "aborted, its parts are there",
        "uploads.abort_released": "its parts are gone, their rows are not",
    },
    "decision": {
        "api.write.written": "review 5 by a person, before its COMMIT",
        "api.write.committed": "review 5 by a person",
    },
    "callback": {"review.callback_written": "review 4, the answer is not committed"},
    "pull": {"api.origin.begun": "origin 1"},
}

UPLOAD: dict[str, Run] = {
    "small": {
        "fetch.after": "b: the message is out of Redis",
        "claim.before": "b",
        "claim.after": "1",
        "upload.claimed": "1",
        "fenced.before_commit": "2, before its COMMIT",
        "upload.after_intent": "2",
        "checkpoint.before": "2",
        "checkpoint.after": "2",
        "upload.after_checkpoint": "2",
        "upload.after_bytes": "4",
        "upload.before_commit": "4",
        "complete.before_commit": "5, before its COMMIT",
        "complete.after_commit": "5",
        "upload.after_commit": "5",
        "upload.after_unlink": "6",
    },
    "large": {
        "upload.after_upload_id": "2, the upload's id is in the row",
        "storage.part_sent": "3, before the checkpoint",
        "upload.after_part": "3",
        "storage.completed": "3, before 4",
    },
    "slow": {
        "slots.acquired": "2, a place of the channel is taken in Redis",
        "slots.written": "2, the row names it",
        "heartbeat.before": "3, before a renewal of the lease",
        "slots.before_release": "5, the place is still taken",
    },
    "failing": {"upload.after_failure": "3, the channel is given up"},
    "assemble": {
        "assemble.claimed": "1",
        "assemble.after_key": "2",
        "assemble.after_upload_id": "2",
        "assemble.after_part": "3",
        "assemble.after_bytes": "4",
        "assemble.before_commit": "4",
        "assemble.after_commit": "5",
        "assemble.after_release": "6",
    },
}

REVIEW: dict[str, Run] = {
    "local": {
        "review.claimed": "2",
        "review.after_step": "3, a step has its answer",
        "review.after_steps": "3",
        "review.before_commit": "3",
        "complete.before_commit": "5, before its COMMIT",
        "complete.after_commit": "5",
        "review.after_commit": "5",
    },
    "webhook": {
        "review.after_waiting": "4, the step waits",
        "review.after_ask": "4, the reviewer was asked",
        "review.before_snooze": "4, the lease is to be given back",
        "answer.before": "4, the lease is to be given back",
        "answer.after": "4, the lease was given back",
    },
    "again": {"review.after_page": "a page of a run is planned"},
}

DELETE: dict[str, Run] = {
    "blob": {
        "delete.claimed": "2",
        "fenced.before_commit": "3, before its COMMIT",
        "delete.after_ownership": "3",
        "delete.after_bytes": "5, the row is there still",
        "delete.after_place": "5",
        "delete.before_commit": "5",
        "complete.before_commit": "6, before its COMMIT",
        "complete.after_commit": "6",
        "delete.after_commit": "6",
    },
    "revived": {
        "finish.before": "3: the generation differs, the task is to end well",
        "finish.after": "3: it has ended",
    },
    "prefix": {
        "prefix.claimed": "2",
        "prefix.after_page": "a page is deleted",
        "prefix.before_commit": "all pages are deleted",
        "prefix.after_commit": "the removal has ended",
    },
}

SCHEDULER: dict[str, Run] = {
    "task": {
        "scan.leases": "a lost execution is scheduled again",
        "scan.due": "it is pending",
        "fill.claimed": "it is dispatching",
        "scan.dispatch_expired": "it is pending again",
        "fill.pushed": "its message is in Redis, the row does not say so",
    },
    "message": {"scan.gone": "a message is missing, its row is not pending yet"},
    "sweeps": {
        "sweep.condemned": "rule 2: an intent is condemned",
        "delete.after_bytes": "rule 2: its bytes are gone",
        "sweep.probed": "rule 2: its key was probed",
        "sweep.aborted": "rule 2: an upload that nobody names is aborted",
        "storage.trashing": "a staging file is in the trash and in its place",
    },
    "expiry": {
        "expiry.written": "an expired key is deleted, before its COMMIT",
        "expiry.committed": "an expired key is deleted",
    },
}

REPLICA: dict[str, Run] = {
    "copy": {
        "replica.claimed": "2",
        "replica.after_intent": "3",
        "replica.after_checkpoint": "3",
        "replica.after_upload_id": "3",
        "replica.after_part": "3",
        "replica.after_bytes": "4",
        "replica.before_commit": "4",
        "complete.before_commit": "5, before its COMMIT",
        "complete.after_commit": "5",
        "replica.after_commit": "5",
    },
    "failing": {"replica.after_failure": "3, the target is given up"},
    "object": {
        "object.claimed": "2",
        "object.after_intent": "3",
        "object.after_checkpoint": "3",
        "object.after_upload_id": "3",
        "object.after_part": "3",
        "object.after_bytes": "4",
        "object.before_commit": "4",
        "complete.before_commit": "5, before its COMMIT",
        "complete.after_commit": "5",
        "object.after_commit": "5",
    },
    "object failing": {"object.after_failure": "3, the target is given up"},
}

#: The scheduler's part of replica.
AUDIT: dict[str, Run] = {
    "compared": {"replicas.after_page": "1: missing copies are planned"},
    "looked": {"replicas.after_report": "a lost copy is reported"},
    "let go": {"replicas.after_letting_go": "a copy that no rule wants is given up"},
}

ORIGIN: dict[str, Run] = {
    "small": {
        "origin.claimed": "2",
        "origin.after_count": "2",
        "origin.after_head": "3",
        "origin.after_bytes": "4",
        "origin.before_commit": "4",
        "complete.before_commit": "5, before its COMMIT",
        "complete.after_commit": "5",
        "origin.after_commit": "5",
        "origin.after_release": "6",
    },
    "resumed": {
        "origin.before_segment": "4, a stretch is in staging, and no row names it",
        "origin.after_segment": "4, a row names the stretch",
        "origin.after_join": "4, the stretches are one file",
    },
}

BACKUP: dict[str, Run] = {
    "failing": {"backup.after_failure": "3, the target is given up"},
    "run": {
        "backup.claimed": "1",
        "backup.after_page": "2",
        "backup.after_round": "2, the second time",
        "backup.items_ended": "3, all of them",
        "backup.after_manifest_intent": "4, its key is named",
        "backup.after_entries": "4, entries are written",
        "backup.after_manifest": "4",
        "backup.after_commit": "5",
    },
    "item": {
        "backup.item_claimed": "3",
        "backup.after_intent": "3",
        "backup.after_checkpoint": "3",
        "backup.after_upload_id": "3",
        "backup.after_part": "3",
        "backup.after_bytes": "3",
        "backup.before_item_commit": "3",
        "complete.before_commit": "3, before its COMMIT",
        "complete.after_commit": "3",
        "backup.after_item_commit": "3, the run is not woken",
    },
    "prune": {
        "backup.prune_claimed": "retention",
        "backup.after_prune_run": "retention: an old run is dropped",
        "backup.after_condemn": "retention: what nothing names is condemned",
        "backup.after_erase": "retention: its bytes are gone",
    },
}

#: The scheduler's part of backup.
BACKUP_SWEEPS: dict[str, Run] = {
    "sweeps": {
        "sweep.content_condemned": "rule 2: an intent on a target is condemned",
        "sweep.content_probed": "rule 2: a key on a target was probed",
    }
}

RESTORE: dict[str, Run] = {
    "blob": {
        "restore.claimed": "2",
        "restore.after_look": "3",
        "restore.after_intent": "4",
        "restore.after_checkpoint": "4",
        "restore.after_upload_id": "4",
        "restore.after_part": "4",
        "restore.after_bytes": "4",
        "restore.before_commit": "4",
        "complete.before_commit": "5, before its COMMIT",
        "complete.after_commit": "5",
        "restore.after_commit": "5",
    },
    "failing": {"restore.after_failure": "4, the target is given up"},
    "search": {
        "restore.run_claimed": "2",
        "restore.before_page": "losses are reported, the cursor has not moved",
        "restore.after_page": "the cursor has moved",
        "restore.before_run_commit": "all pages are looked at",
        "restore.after_run_commit": "the run has ended",
    },
    "keys": {
        "restore.after_manifest": "4, the manifest is proven",
        "restore.after_staged": "4, the bytes are in staging",
        "restore.before_key": "4",
        "restore.after_key": "5, the version and the cursor",
    },
}

TABLES: dict[str, dict[str, Run]] = {
    "requests": REQUESTS,
    "upload": UPLOAD,
    "review": REVIEW,
    "delete": DELETE,
    "scheduler": SCHEDULER,
    "replica": REPLICA,
    "audit": AUDIT,
    "origin": ORIGIN,
    "backup": BACKUP,
    "backup sweeps": BACKUP_SWEEPS,
    "restore": RESTORE,
}

#: Failpoints at which other tests let processes die, and where.
ELSEWHERE: dict[str, str] = {
    "expiry.page_told": "tests/integration/catalog/test_expiry_crashes.py",
    "notify.before_send": "tests/integration/handlers/test_notify_crashes.py",
    "notify.after_send": "tests/integration/handlers/test_notify_crashes.py",
    "parking.reserved": "tests/integration/outbox/test_slots_processes.py",
    "parking.woken": "tests/integration/outbox/test_slots_processes.py",
    "rebuild.locked": "tests/integration/outbox/test_slots_processes.py",
    "rebuild.read": "tests/integration/outbox/test_slots_processes.py",
    "scan.parked": "tests/integration/outbox/test_slots_processes.py",
}
