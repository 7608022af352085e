"""The directory of a file channel: its marker, its areas, and how files become objects durably.

Layout: ``objects/<key>``, ``tmp`` for files that are being written, ``uploads/<id>`` for multipart
uploads, and the marker ``.channel`` without which nothing is read or written: an unmounted volume
looks like an empty directory, and must not be taken for an empty channel.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from shared.core.ids import new_id
from shared.storage import tree
from shared.storage.errors import ChannelError, ChannelUnavailable, InvalidKey, from_os_error

MARKER = ".channel"
OBJECTS = "objects"
TEMPORARY = "tmp"
UPLOADS = "uploads"
_AREAS = (OBJECTS, TEMPORARY, UPLOADS)


class FileRoot:
    """The root directory of one file channel. OSErrors come out as channel errors."""

    def __init__(self, path: Path, *, channel: str, create: bool = False) -> None:
        self.path = path
        self.channel = channel
        self._create = create
        self.durable = tree.DurableFolders()

    def prepare(self) -> None:
        """Make the directory, its areas and its marker. Doing it again changes nothing.

        Refuses a directory that holds something else.
        """
        with self.mapped("prepare"):
            self.path.mkdir(tree.FOLDER_MODE, parents=True, exist_ok=True)
            with tree.folder(os.fspath(self.path)) as root:
                names = set(os.listdir(root))
                if MARKER not in names and not names <= {*_AREAS, "lost+found"}:
                    raise OSError(errno.EPERM, "the directory holds something else already")
                for area in _AREAS:
                    with tree.below(root, (area,), make=self.durable):
                        pass
                if MARKER not in names:
                    with tree.regular_file(root, MARKER, os.O_WRONLY | os.O_CREAT) as marker:
                        os.ftruncate(marker, 0)
                        tree.write_all(marker, memoryview(b"file channel, layout 1\n"))
                        os.fsync(marker)
                    os.fsync(root)

    @contextmanager
    def mapped(self, action: str, key: str = "") -> Iterator[None]:
        """Turn OSErrors of the body into channel errors."""
        try:
            yield
        except OSError as error:
            raise from_os_error(error, channel=self.channel, action=action, key=key) from error

    @contextmanager
    def area(self, name: str) -> Iterator[int]:
        """Open an area. ChannelUnavailable if this is not (or no longer) a channel's directory."""
        try:
            descriptor = self._open_area(name)
        except ChannelUnavailable:
            if not self._create:
                raise
            self.prepare()
            descriptor = self._open_area(name)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _open_area(self, name: str) -> int:
        try:
            root = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise self._no_channel("the directory cannot be opened", error) from error
        try:
            try:
                os.stat(MARKER, dir_fd=root, follow_symlinks=False)
            except OSError as error:
                raise self._no_channel("it has no marker; is the volume mounted?", error) from error
            try:
                return os.open(
                    name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root
                )
            except OSError as error:
                raise self._no_channel(f"its area {name} cannot be opened", error) from error
        finally:
            os.close(root)

    def _no_channel(self, what: str, error: OSError) -> ChannelError:
        return ChannelUnavailable(
            f"channel {self.channel}: {what}: {error.strerror}",
            channel=self.channel,
            root=str(self.path),
            errno=error.errno,
        )

    @contextmanager
    def temporary(self) -> Iterator[tuple[int, str, int]]:
        """Make a temporary file: (area, name, descriptor); unless published it goes afterwards."""
        with self.area(TEMPORARY) as area:
            name = new_id()
            try:
                with tree.regular_file(area, name, os.O_RDWR | os.O_CREAT | os.O_EXCL) as file:
                    yield area, name, file
            finally:
                tree.remove_file(area, name)

    def publish(
        self, area: int, name: str, segments: Sequence[str], *, if_absent: bool = False
    ) -> None:
        """Give a finished, fsynced file its key, durably. FileExistsError with `if_absent`."""
        with (
            self.area(OBJECTS) as objects,
            tree.below(objects, segments[:-1], make=self.durable) as parent,
        ):
            last = segments[-1]
            if if_absent:
                os.link(name, last, src_dir_fd=area, dst_dir_fd=parent, follow_symlinks=False)
                os.unlink(name, dir_fd=area)
            else:
                os.rename(name, last, src_dir_fd=area, dst_dir_fd=parent)
            os.fsync(parent)

    @contextmanager
    def folder_conflicts(self, key: str) -> Iterator[None]:
        """Turn the clash of a key with a folder of the same name into InvalidKey."""
        try:
            yield
        except OSError as error:
            if error.errno in {errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY}:
                raise InvalidKey(
                    "a file channel cannot hold both a key and keys below it",
                    channel=self.channel,
                    key=key,
                ) from error
            raise
