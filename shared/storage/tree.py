"""A directory tree that is walked by file descriptors, so that no name leads out of it.

Every step opens one directory below the last without following symbolic links. Nothing here knows
what a channel keeps; errors are plain OSErrors.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

#: Files and folders are the owner's and the group's; the umask narrows it.
FILE_MODE = 0o660
FOLDER_MODE = 0o770

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Not blocking: a FIFO under an object's name must not hang its reader.
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
#: Folders remembered as durable before the memory starts anew.
_REMEMBERED = 20_000


class DurableFolders:
    """Remembers which folders are known to survive a power cut.

    A folder is durable when its parent was fsynced after it was made. Another process may have made
    it a moment ago without having come so far, so each process makes sure once for itself.
    """

    def __init__(self) -> None:
        self._known: set[tuple[int, int]] = set()

    def ensure(self, folder: int, parent: int) -> None:
        """Fsync `parent` unless the entry of `folder` in it is known to be durable."""
        facts = os.fstat(folder)
        identity = (facts.st_dev, facts.st_ino)
        if identity in self._known:
            return
        os.fsync(parent)
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known.add(identity)


@contextmanager
def folder(name: str, *, parent: int | None = None) -> Iterator[int]:
    """Open a folder; with `parent`, one directly below that and no symbolic link."""
    flags = _FOLDER if parent is not None else _FOLDER & ~os.O_NOFOLLOW
    descriptor = os.open(name, flags, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def below(top: int, names: Sequence[str], *, make: DurableFolders | None = None) -> Iterator[int]:
    """Open the folder reached from `top` by `names`; with `make`, missing ones are made durably."""
    current = os.dup(top)
    try:
        for name in names:
            following = _step(current, name, make)
            os.close(current)
            current = following
        yield current
    finally:
        os.close(current)


def _step(parent: int, name: str, make: DurableFolders | None) -> int:
    if make is not None:
        with suppress(FileExistsError):
            os.mkdir(name, FOLDER_MODE, dir_fd=parent)
    try:
        descriptor = os.open(name, _FOLDER, dir_fd=parent)
    except NotADirectoryError as error:
        if is_link(parent, name):
            raise OSError(errno.ELOOP, "a symbolic link is in the way", name) from error
        raise
    if make is not None:
        try:
            make.ensure(descriptor, parent)
        except BaseException:
            os.close(descriptor)
            raise
    return descriptor


@contextmanager
def regular_file(parent: int, name: str, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Open a regular file directly below `parent`; anything else that has the name is refused.

    A folder under that name counts as "no such file", as on S3.
    """
    try:
        descriptor = os.open(name, flags | _FILE, FILE_MODE, dir_fd=parent)
    except IsADirectoryError as error:
        raise FileNotFoundError(errno.ENOENT, "a folder has that name", name) from error
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise FileNotFoundError(errno.ENOENT, "a folder has that name", name)
        if not stat.S_ISREG(mode):
            raise OSError(errno.EPERM, "not a regular file", name)
        yield descriptor
    finally:
        os.close(descriptor)


def is_link(parent: int, name: str) -> bool:
    """Tell whether `name` directly below `parent` is a symbolic link."""
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def write_all(descriptor: int, data: memoryview, *, offset: int | None = None) -> None:
    """Write all of `data`, at the file's end or at `offset`."""
    while data:
        if offset is None:
            written = os.write(descriptor, data)
        else:
            written = os.pwrite(descriptor, data, offset)
            offset += written
        data = data[written:]


def remove_file(parent: int, name: str) -> bool:
    """Remove a file directly below `parent`; False if it is not there."""
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return False
    return True
