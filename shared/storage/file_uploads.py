"""Multipart uploads of the file kind: one growing file, and a journal of the parts it holds.

``uploads/<id>/`` holds ``key`` (whose upload it is), ``data`` (every part at its place) and
``parts`` (one line per part, appended after the part's bytes are on disk). A kill at any moment
leaves an upload that goes on: a part without its line is sent again, a torn line is no line.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from shared.core.clock import Deadline
from shared.core.ids import new_id
from shared.storage import tree
from shared.storage.body import Body
from shared.storage.channel import OpenUpload, Part
from shared.storage.errors import ChannelRefused, UploadGone
from shared.storage.file_listing import moment
from shared.storage.file_root import TEMPORARY, UPLOADS, FileRoot
from shared.storage.keys import check_key
from shared.storage.limits import in_time

_ID = re.compile(r"[0-9a-f]{32}")
_KEY, _DATA, _PARTS = "key", "data", "parts"


@dataclass(frozen=True, slots=True)
class _Record:
    part: Part
    offset: int


class FileUploads:
    """The multipart uploads below one root."""

    def __init__(self, root: FileRoot) -> None:
        self._root = root

    def create(self, key: str) -> str:
        """Make an upload; it appears whole or not at all."""
        upload_id = new_id()
        with (
            self._root.mapped("create_upload", key),
            self._root.area(TEMPORARY) as temporary,
            self._root.area(UPLOADS) as uploads,
        ):
            os.mkdir(upload_id, tree.FOLDER_MODE, dir_fd=temporary)
            try:
                with tree.below(temporary, (upload_id,)) as folder:
                    for name in (_DATA, _PARTS):
                        with tree.regular_file(folder, name, os.O_WRONLY | os.O_CREAT):
                            pass
                    with tree.regular_file(folder, _KEY, os.O_WRONLY | os.O_CREAT) as file:
                        tree.write_all(file, memoryview(key.encode()))
                        os.fsync(file)
                    os.fsync(folder)
                os.rename(upload_id, upload_id, src_dir_fd=temporary, dst_dir_fd=uploads)
            except BaseException:
                remove_upload_folder(temporary, upload_id)
                raise
            os.fsync(uploads)
        return upload_id

    def put_part(
        self, key: str, upload_id: str, number: int, body: Body, *, offset: int, deadline: Deadline
    ) -> Part:
        """Write a part at its place, then its line into the journal; both durable at the end."""
        digest = hashlib.sha256()
        with self._folder(key, upload_id, "put_part") as folder:
            with tree.regular_file(folder, _DATA, os.O_WRONLY) as data:
                position = offset
                for chunk in body.chunks():
                    in_time(deadline, channel=self._root.channel, action="put_part", key=key)
                    digest.update(chunk)
                    tree.write_all(data, chunk, offset=position)
                    position += len(chunk)
                os.fdatasync(data)
            part = Part(number=number, etag=digest.hexdigest(), size=body.size)
            line = json.dumps({"n": number, "o": offset, "s": body.size, "e": part.etag})
            with tree.regular_file(folder, _PARTS, os.O_WRONLY | os.O_APPEND) as journal:
                # A line feed before and after: what a killed writer left of a line spoils no other.
                tree.write_all(journal, memoryview(f"\n{line}\n".encode()))
                os.fdatasync(journal)
        return part

    def parts(self, key: str, upload_id: str) -> list[Part]:
        """Return the parts that are on disk, by number."""
        with self._folder(key, upload_id, "list_parts") as folder:
            records = _read_journal(folder)
        return [records[number].part for number in sorted(records)]

    def complete(self, key: str, upload_id: str, parts: Sequence[Part]) -> os.stat_result:
        """Turn the data file into the object and drop the rest."""
        segments = check_key(key)
        with (
            self._folder(key, upload_id, "complete_upload") as folder,
            self._root.area(UPLOADS) as uploads,
        ):
            size = _joined_size(_read_journal(folder), parts, key)
            with tree.regular_file(folder, _DATA, os.O_RDWR) as data:
                have = os.fstat(data).st_size
                if have < size:
                    raise OSError(errno.EIO, "the data file is shorter than its parts")
                if have > size:
                    os.ftruncate(data, size)
                os.fsync(data)
                with self._root.folder_conflicts(key):
                    self._root.publish(folder, _DATA, segments)
                facts = os.fstat(data)
            self._remove(uploads, upload_id)
        return facts

    def abort(self, key: str, upload_id: str) -> None:
        """Drop an upload, also one whose completion was cut short."""
        if not _ID.fullmatch(upload_id):
            return
        with self._root.mapped("abort_upload", key), self._root.area(UPLOADS) as uploads:
            self._remove(uploads, upload_id)

    def _remove(self, uploads: int, upload_id: str) -> None:
        """Move the folder out of sight in one step, then remove it."""
        with self._root.area(TEMPORARY) as temporary:
            try:
                os.rename(upload_id, upload_id, src_dir_fd=uploads, dst_dir_fd=temporary)
            except FileNotFoundError:
                return
            os.fsync(uploads)
            remove_upload_folder(temporary, upload_id)

    def open_uploads(self) -> Iterator[OpenUpload]:
        """Yield all uploads, also those whose completion was cut short and whose rest must go."""
        with self._root.area(UPLOADS) as uploads:
            with self._root.mapped("list_uploads"):
                names = sorted(os.listdir(uploads))
            for name in names:
                with self._root.mapped("list_uploads"):
                    try:
                        with tree.below(uploads, (name,)) as folder:
                            key, facts = _read_key(folder)
                    except FileNotFoundError:
                        continue
                yield OpenUpload(key=key, upload_id=name, started_at=moment(facts.st_mtime_ns))

    @contextmanager
    def _folder(self, key: str, upload_id: str, action: str) -> Iterator[int]:
        """Open an upload's folder; UploadGone if it, or a file sought in it, is not there."""
        gone = UploadGone(
            "no such upload", channel=self._root.channel, key=key, upload_id=upload_id
        )
        if not _ID.fullmatch(upload_id):
            raise gone
        with self._root.mapped(action, key), self._root.area(UPLOADS) as uploads:
            try:
                with tree.below(uploads, (upload_id,)) as folder:
                    if _read_key(folder)[0] != key:
                        raise gone
                    os.stat(_DATA, dir_fd=folder, follow_symlinks=False)
                    yield folder
            except FileNotFoundError:
                raise gone from None


def _read_key(folder: int) -> tuple[str, os.stat_result]:
    with tree.regular_file(folder, _KEY) as file:
        facts = os.fstat(file)
        return os.read(file, facts.st_size).decode(), facts


def _read_journal(folder: int) -> dict[int, _Record]:
    with tree.regular_file(folder, _PARTS) as file, open(file, "rb", closefd=False) as journal:
        lines = journal.read().split(b"\n")
    records = {}
    for line in lines:
        try:
            said = json.loads(line)
            part = Part(number=said["n"], etag=said["e"], size=said["s"])
            records[part.number] = _Record(part=part, offset=said["o"])
        except (ValueError, KeyError, TypeError):
            continue
    return records


def _joined_size(records: dict[int, _Record], parts: Sequence[Part], key: str) -> int:
    """Return the size of the whole; parts that are unknown or do not adjoin are refused."""
    end = 0
    for part in sorted(parts, key=lambda part: part.number):
        record = records.get(part.number)
        if record is None or record.part != part or record.offset != end:
            raise ChannelRefused(
                "the parts do not make a whole", code="invalid_parts", key=key, number=part.number
            )
        end += part.size
    return end


def remove_upload_folder(parent: int, name: str) -> None:
    """Remove an upload's folder and its files from the temporary area."""
    try:
        with tree.below(parent, (name,)) as folder:
            for file in os.listdir(folder):
                tree.remove_file(folder, file)
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        pass
