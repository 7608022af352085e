"""The ``file`` kind: a directory as a channel, on a local disk or a shared volume.

Objects appear by an atomic rename after an fsync of the file, and the folder is fsynced before the
call returns. Keys are walked one folder at a time without following links (see `tree`).
"""

from __future__ import annotations

import errno
import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from shared.core.clock import Deadline
from shared.storage import tree
from shared.storage.body import CHUNK_BYTES, Body
from shared.storage.channel import Capabilities, Entry, Found, OpenUpload, Part, Remote, Stored
from shared.storage.errors import ChannelUnavailable, KeyTaken, ObjectMissing, SourceError
from shared.storage.file_listing import moment, walk
from shared.storage.file_root import OBJECTS, TEMPORARY, FileRoot
from shared.storage.file_sweep import sweep_temporary
from shared.storage.file_uploads import FileUploads
from shared.storage.keys import check_key
from shared.storage.limits import in_time

#: Bytes that the kernel copies in one call, between two looks at the deadline.
_COPY_BYTES = 8 * 1024 * 1024


class FileChannel:
    """A directory as a channel. Many processes may use one root at once."""

    kind = "file"
    capabilities = Capabilities(
        checksum="none", conditional_put=True, server_copy=True, copy_part_bytes=sys.maxsize
    )

    def __init__(self, root: str | os.PathLike[str], *, name: str, create: bool = False) -> None:
        self.name = name
        self.root = FileRoot(Path(root), channel=name, create=create)
        self._uploads = FileUploads(self.root)

    def prepare(self, *, deadline: Deadline) -> None:
        """Make the directory with its marker; without it every call says ChannelUnavailable."""
        self._in_time(deadline, "prepare", "")
        self.root.prepare()

    def put(
        self, key: str, body: Body, *, sha256: str, if_absent: bool = False, deadline: Deadline
    ) -> Stored:
        """See Channel.put."""
        segments = check_key(key)
        digest = hashlib.sha256()
        with self.root.mapped("put", key), self.root.temporary() as (area, name, file):
            for chunk in body.chunks():
                self._in_time(deadline, "put", key)
                digest.update(chunk)
                tree.write_all(file, chunk)
            if digest.hexdigest() != sha256:
                raise SourceError(
                    "the body has another sha256",
                    key=key,
                    expected=sha256,
                    actual=digest.hexdigest(),
                )
            os.fsync(file)
            self._publish(area, name, segments, key, if_absent=if_absent)
            facts = os.fstat(file)
        return Stored(key=key, size=body.size, etag=_etag(facts))

    def _publish(
        self, area: int, name: str, segments: Sequence[str], key: str, *, if_absent: bool
    ) -> None:
        try:
            with self.root.folder_conflicts(key):
                self.root.publish(area, name, segments, if_absent=if_absent)
        except FileExistsError:
            raise KeyTaken("the key exists already", channel=self.name, key=key) from None

    @contextmanager
    def get(
        self, key: str, *, start: int = 0, length: int | None = None, deadline: Deadline
    ) -> Iterator[Iterator[bytes]]:
        """See Channel.get."""
        file = self._open(key)
        try:
            with self.root.mapped("get", key):
                size = os.fstat(file).st_size
            if length is None and start > size:
                raise self._short(key, start - size)
            wanted = max(0, size - start) if length is None else length
            yield self._read(file, key, start, wanted, deadline)
        finally:
            os.close(file)

    def _open(self, key: str) -> int:
        with self._existing(key) as file:
            if file is None:
                raise ObjectMissing("no such object", channel=self.name, key=key)
            return os.dup(file)

    @contextmanager
    def _existing(self, key: str) -> Iterator[int | None]:
        """Open an object; None if it is not there. Only use it around calls on the file itself."""
        segments = check_key(key)
        with self.root.mapped("open", key), self.root.area(OBJECTS) as objects:
            try:
                with (
                    tree.below(objects, segments[:-1]) as parent,
                    tree.regular_file(parent, segments[-1]) as file,
                ):
                    yield file
                    return
            except (FileNotFoundError, NotADirectoryError):
                pass
            yield None

    def _read(
        self, file: int, key: str, start: int, wanted: int, deadline: Deadline
    ) -> Iterator[bytes]:
        while wanted > 0:
            self._in_time(deadline, "get", key)
            with self.root.mapped("get", key):
                chunk = os.pread(file, min(wanted, CHUNK_BYTES), start)
            if not chunk:
                raise self._short(key, wanted)
            start += len(chunk)
            wanted -= len(chunk)
            yield chunk

    def _short(self, key: str, missing_bytes: int) -> ChannelUnavailable:
        return ChannelUnavailable(
            "the object is shorter than asked for",
            code="short_read",
            channel=self.name,
            key=key,
            missing_bytes=missing_bytes,
        )

    def head(self, key: str, *, deadline: Deadline) -> Found | None:
        """See Channel.head."""
        self._in_time(deadline, "head", key)
        with self._existing(key) as file:
            if file is None:
                return None
            facts = os.fstat(file)
        return Found(
            key=key, size=facts.st_size, etag=_etag(facts), modified_at=moment(facts.st_mtime_ns)
        )

    def delete(self, key: str, *, deadline: Deadline) -> None:
        """See Channel.delete. Folders stay: removing them would race with writers."""
        segments = check_key(key)
        self._in_time(deadline, "delete", key)
        with self.root.mapped("delete", key), self.root.area(OBJECTS) as objects:
            try:
                with tree.below(objects, segments[:-1]) as parent:
                    # Fsynced also when it was gone: whoever removed it may have died before that.
                    tree.remove_file(parent, segments[-1])
                    os.fsync(parent)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return

    def list(self, prefix: str = "", *, after: str = "", deadline: Deadline) -> Iterator[Entry]:
        """See Channel.list."""
        with self.root.area(OBJECTS) as objects:
            entries = walk(
                objects,
                prefix=prefix,
                after=after,
                in_time=lambda: self._in_time(deadline, "list", prefix),
            )
            while True:
                with self.root.mapped("list", prefix):
                    entry = next(entries, None)
                if entry is None:
                    return
                yield entry

    def copy(self, source: str, key: str, *, deadline: Deadline) -> Stored:
        """See Channel.copy. The kernel copies, or shares blocks where the file system can."""
        segments = check_key(key)
        original = self._open(source)
        try:
            with self.root.mapped("copy", key), self.root.temporary() as (area, name, file):
                size = os.fstat(original).st_size
                done = 0
                while done < size:
                    self._in_time(deadline, "copy", key)
                    done += _copy_some(original, file, done, size - done)
                os.fsync(file)
                self._publish(area, name, segments, key, if_absent=False)
                return Stored(key=key, size=size, etag=_etag(os.fstat(file)))
        finally:
            os.close(original)

    def remote(self, key: str) -> Remote:
        """See Channel.remote. A directory is a domain of its own."""
        check_key(key)
        return Remote(f"file:{self.root.path}", "", key)

    def copy_remote(self, source: Remote, key: str, *, sha256: str, deadline: Deadline) -> Stored:
        """See Channel.copy_remote."""
        return self.copy(self._own(source), key, deadline=deadline)

    def copy_part(
        self,
        source: Remote,
        key: str,
        upload_id: str,
        number: int,
        *,
        offset: int,
        length: int,
        deadline: Deadline,
    ) -> Part:
        """See Channel.copy_part."""
        with self.get(self._own(source), start=offset, length=length, deadline=deadline) as chunks:
            body = Body(b"".join(chunks))
        return self._uploads.put_part(
            key, upload_id, number, body, offset=offset, deadline=deadline
        )

    def _own(self, source: Remote) -> str:
        if source.domain != self.remote(source.key).domain:
            raise ChannelUnavailable("another directory's object", channel=self.name)
        return source.key

    def move(self, source: str, key: str, *, touch: bool = False) -> bool:
        """Give an object another key, durably; False if it is not there. Not on every kind.

        With `touch` its time becomes now, so that its age counts from the move.
        """
        old, new = check_key(source), check_key(key)
        with (
            self.root.mapped("move", key),
            self.root.area(OBJECTS) as objects,
            tree.below(objects, new[:-1], make=self.root.durable) as target,
        ):
            try:
                with tree.below(objects, old[:-1]) as parent:
                    if touch:
                        os.utime(old[-1], dir_fd=parent, follow_symlinks=False)
                    os.rename(old[-1], new[-1], src_dir_fd=parent, dst_dir_fd=target)
                    os.fsync(target)
                    os.fsync(parent)
            except FileNotFoundError:
                return False
        return True

    def create_upload(self, key: str, *, sha256: str = "", deadline: Deadline) -> str:
        """See Channel.create_upload."""
        check_key(key)
        self._in_time(deadline, "create_upload", key)
        return self._uploads.create(key)

    def put_part(
        self, key: str, upload_id: str, number: int, body: Body, *, offset: int, deadline: Deadline
    ) -> Part:
        """See Channel.put_part."""
        return self._uploads.put_part(
            key, upload_id, number, body, offset=offset, deadline=deadline
        )

    def list_parts(self, key: str, upload_id: str, *, deadline: Deadline) -> Iterator[Part]:
        """See Channel.list_parts."""
        self._in_time(deadline, "list_parts", key)
        return iter(self._uploads.parts(key, upload_id))

    def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[Part], *, deadline: Deadline
    ) -> Stored:
        """See Channel.complete_upload. The parts must adjoin each other; no byte is copied."""
        self._in_time(deadline, "complete_upload", key)
        facts = self._uploads.complete(key, upload_id, parts)
        return Stored(key=key, size=facts.st_size, etag=_etag(facts))

    def abort_upload(self, key: str, upload_id: str, *, deadline: Deadline) -> None:
        """See Channel.abort_upload."""
        self._in_time(deadline, "abort_upload", key)
        self._uploads.abort(key, upload_id)

    def list_uploads(self, *, deadline: Deadline) -> Iterator[OpenUpload]:
        """See Channel.list_uploads."""
        for upload in self._uploads.open_uploads():
            self._in_time(deadline, "list_uploads", upload.key)
            yield upload

    def probe(self, *, deadline: Deadline) -> None:
        """See Channel.probe."""
        self._in_time(deadline, "probe", "")
        with self.root.mapped("probe"), self.root.area(TEMPORARY) as area:
            if os.fstatvfs(area).f_flag & os.ST_RDONLY:
                raise OSError(errno.EROFS, "the file system is read-only")

    def sweep_partial(self, *, minimum_age_seconds: float, deadline: Deadline) -> int:
        """See Channel.sweep_partial."""
        self._in_time(deadline, "sweep_partial", "")
        return sweep_temporary(self.root, minimum_age_seconds=minimum_age_seconds)

    def space(self) -> tuple[int, int]:
        """Return (free, total) bytes of the file system, as far as this user may fill it."""
        with self.root.mapped("space"), self.root.area(TEMPORARY) as area:
            facts = os.fstatvfs(area)
        free = facts.f_bavail * facts.f_frsize
        return free, free + (facts.f_blocks - facts.f_bfree) * facts.f_frsize

    def _in_time(self, deadline: Deadline, action: str, key: str) -> None:
        in_time(deadline, channel=self.name, action=action, key=key)


def _copy_some(source: int, target: int, offset: int, wanted: int) -> int:
    count = min(wanted, _COPY_BYTES)
    try:
        copied = os.copy_file_range(source, target, count, offset, offset)
    except OSError as error:
        if error.errno not in {errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}:
            raise
        os.lseek(target, offset, os.SEEK_SET)
        copied = os.sendfile(target, source, offset, count)
    if copied == 0:
        raise OSError(errno.EIO, "the source became shorter")
    return copied


def _etag(facts: os.stat_result) -> str:
    """Return a value that changes whenever the object is written anew."""
    return f"{facts.st_ino:x}-{facts.st_size:x}-{facts.st_mtime_ns:x}"
