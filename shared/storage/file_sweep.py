"""Removes what killed writers left in the temporary area of a file channel."""

from __future__ import annotations

import os
import stat
import time

from shared.storage.file_root import TEMPORARY, FileRoot
from shared.storage.file_uploads import remove_upload_folder
from shared.storage.tree import remove_file


def sweep_temporary(root: FileRoot, *, minimum_age_seconds: float, at_most: int = 1000) -> int:
    """Remove temporary files that nobody has written to for that long; returns how many.

    Choose the age far above the longest pause of a living writer.
    """
    removed = 0
    with root.mapped("sweep"), root.area(TEMPORARY) as area:
        oldest = time.time() - minimum_age_seconds
        for name in os.listdir(area):
            try:
                facts = os.stat(name, dir_fd=area, follow_symlinks=False)
            except FileNotFoundError:
                continue
            if facts.st_mtime > oldest:
                continue
            if stat.S_ISDIR(facts.st_mode):
                remove_upload_folder(area, name)
            else:
                remove_file(area, name)
            removed += 1
            if removed >= at_most:
                break
    return removed
