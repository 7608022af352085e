"""Every step of the protocols at which a process dies in a test, in the order of the protocols."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Steps:
    """The failpoints of one queue by the run that meets them; each with the step it stands for."""

    runs: Mapping[str, Mapping[str, str]]

    def of(self, run: str) -> list[str]:
        """Return the failpoints of one run."""
        return list(self.runs[run])


STEPS: dict[str, Steps] = {
    "upload": Steps(
        {
            "small": {
                "fetch.after": "b, before 1",
                "claim.before": "b, before 1",
                "claim.after": "1",
                "upload.claimed": "1",
                "fenced.before_commit": "2, before the intent is there",
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
                "upload.after_upload_id": "2, the upload is in the row",
                "storage.part_sent": "3, before the checkpoint",
                "upload.after_part": "3",
                "storage.completed": "3, before 4",
            },
        }
    ),
}
