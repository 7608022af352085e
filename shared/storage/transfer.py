"""Moves the bytes of a source to a channel: bounded memory, checkpoints, proof at the end.

A small body is one put, a larger one a multipart upload whose parts are sent by helper threads
while the owner's thread asks whether to go on. A transfer that was cut short goes on from the parts
that the channel has, in whatever process; it ends only when the stored bytes are proven to be the
right ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar, cast

from shared.core.clock import Deadline
from shared.core.errors import BloxError
from shared.core.failpoints import failpoint
from shared.storage.body import Body
from shared.storage.channel import Found, Part, Remote
from shared.storage.crew import ASK_SECONDS, STALL_SECONDS, Crew, Stalled
from shared.storage.errors import (
    ChannelTimeout,
    ChecksumMismatch,
    DeadlinePassed,
    KeyTaken,
    ObjectMissing,
    SourceError,
    SourceUnavailable,
    UploadGone,
)
from shared.storage.progress import Plan, Progress
from shared.storage.registry import OpenChannel
from shared.storage.source import Source
from shared.storage.source_reader import SourceReader
from shared.storage.verify import proven, source_sha256

T = TypeVar("T")

#: Parts that are read while others are being sent, where sending waits for a network.
READ_AHEAD = 1


@dataclass(frozen=True, slots=True)
class Transferred:
    """A transfer that ended well. `parts_kept` were on the channel before and not sent again."""

    key: str
    size: int
    sha256: str
    etag: str
    parts_sent: int
    parts_kept: int
    bytes_sent: int


def transfer(
    source: Source,
    opened: OpenChannel,
    key: str,
    *,
    size: int,
    sha256: str,
    resume: Progress | None = None,
    save: Callable[[Progress], None] = lambda _: None,
    check: Callable[[], None] = lambda: None,
    deadline: Deadline,
    stall_seconds: float = STALL_SECONDS,
    remote: Remote | None = None,
    md5: str | None = None,
) -> Transferred:
    """Store `source` under `key` and prove it.

    `key` must be fresh, or the one that `resume` was saved for. `save` is called in this thread
    after the upload id is known, before any part is sent, and after every part; `check` in this
    thread before every part and at least once a second, also while a part is slow. Whatever either
    raises ends the transfer, and so do the deadline and `stall_seconds` in which nothing moved. A
    ChannelError says that another channel may
    do better; the upload is left open for a later `resume`, or for the caller to abort. SourceError
    says that no channel can help.

    With `remote`, which names the source in the channel's domain, the provider copies and no byte
    passes through here. `md5` is that of the source, if it was proven before: then a provider that
    tells the whole object's md5 need not send it all back as a proof.
    """
    with Crew[object](check=check, deadline=deadline, stall_seconds=stall_seconds) as crew:
        work = _Transfer(source, opened, key, size, sha256, save, crew, deadline, remote, md5)
        try:
            return work.run(resume)
        except Stalled as error:
            raise work.stalled() from error


class _Transfer:
    """One call of `transfer`."""

    def __init__(
        self,
        source: Source,
        opened: OpenChannel,
        key: str,
        size: int,
        sha256: str,
        save: Callable[[Progress], None],
        crew: Crew[object],
        deadline: Deadline,
        remote: Remote | None,
        md5: str | None,
    ) -> None:
        self._reader = SourceReader(source, size=size, key=key, deadline=deadline)
        self._opened = opened
        self._channel = opened.channel
        self._key = key
        self._size = size
        self._sha256 = sha256
        self._save = save
        self._crew = crew
        self._deadline = deadline
        self._remote = remote
        self._md5 = md5
        #: Bytes of a part, and the largest body that is not sent in parts.
        self._part_bytes = (
            opened.part_bytes if remote is None else opened.channel.capabilities.copy_part_bytes
        )
        is_near = remote is not None or opened.channel.kind == "file"
        self._ahead = 0 if is_near else READ_AHEAD
        self._turns = threading.Semaphore(opened.parallel_parts)
        self._upload_pace = crew.pace(opened.upload_limit)
        self._download_pace = crew.pace(opened.download_limit)

    def run(self, resume: Progress | None) -> Transferred:
        if resume is None and self._size <= self._part_bytes:
            found = self._run(self._put if self._remote is None else self._copy)
            return self._ended(found, sent=1, kept=0, bytes_sent=self._size)
        with self._reader.in_use():
            self._run(self._reader.check_size)
            return self._in_parts(resume)

    def stalled(self) -> BloxError:
        """Return what it means that nothing moves any more: it is the source's fault, or ours."""
        if self._reader.is_waited_for():
            return SourceUnavailable("the source does not move", key=self._key)
        # The call that hangs will never report.
        self._opened.breaker.failed()
        return ChannelTimeout(
            f"channel {self._opened.name}: nothing moves", channel=self._opened.name, key=self._key
        )

    def _run(self, job: Callable[[], T]) -> T:
        return cast(T, self._crew.run(job))

    def _put(self) -> Found:
        body = Body(self._reader.read_whole(), pace=self._upload_pace)
        try:
            stored = self._channel.put(
                self._key,
                body,
                sha256=self._sha256,
                if_absent=self._channel.capabilities.conditional_put,
                deadline=self._deadline,
            )
        except KeyTaken:
            # Keys are never used twice, so these may be the bytes of an attempt that died after
            # them.
            return self._proven()
        return self._proven(stored.md5)

    def _copy(self) -> Found:
        assert self._remote is not None
        try:
            stored = self._channel.copy_remote(
                self._remote, self._key, sha256=self._sha256, deadline=self._deadline
            )
        except ObjectMissing:
            self._reader.check_size()  # Not the channel's fault, if the source is gone.
            raise
        if stored.size != self._size:
            self._reader.check_size()
        return self._proven(self._md5, stored.found)

    def _in_parts(self, resume: Progress | None) -> Transferred:
        if resume is not None:
            try:
                return self._send(resume, self._run(lambda: self._parts_there(resume)))
            except UploadGone:
                # Completed by an attempt that died before it could say so?
                if self._run(lambda: self._channel.head(self._key, deadline=self._deadline)):
                    return self._ended(self._run(self._proven), sent=0, kept=0, bytes_sent=0)
        plan = Plan.of(self._size, self._part_bytes)
        upload_id = self._run(
            lambda: self._channel.create_upload(
                self._key, sha256=self._sha256, deadline=self._deadline
            )
        )
        progress = Progress(upload_id=upload_id, part_bytes=plan.part_bytes)
        self._save(progress)
        return self._send(progress, {})

    def _parts_there(self, progress: Progress) -> dict[int, Part]:
        """Return the parts that need not be sent again: those that have their planned size."""
        plan = Plan(size=self._size, part_bytes=progress.part_bytes)
        there = self._channel.list_parts(self._key, progress.upload_id, deadline=self._deadline)
        return {part.number: part for part in there if part.size == plan.length(part.number) > 0}

    def _send(self, progress: Progress, parts: dict[int, Part]) -> Transferred:
        plan = Plan(size=self._size, part_bytes=progress.part_bytes)
        kept = len(parts)
        bytes_kept = sum(part.size for part in parts.values())
        missing = iter([number for number in plan.numbers() if number not in parts])
        running = 0
        bytes_done = bytes_kept
        while True:
            while running < self._opened.parallel_parts + self._ahead:
                number = next(missing, None)
                if number is None:
                    break
                self._crew.start(self._part_job(progress.upload_id, plan, number))
                running += 1
            if running == 0:
                break
            part = self._crew.next_done()
            failpoint("storage.part_sent")
            running -= 1
            assert isinstance(part, Part)
            parts[part.number] = part
            bytes_done += part.size
            self._save(replace(progress, parts_done=len(parts), bytes_done=bytes_done))
        found = self._run(lambda: self._complete(progress.upload_id, list(parts.values())))
        return self._ended(
            found, sent=len(parts) - kept, kept=kept, bytes_sent=bytes_done - bytes_kept
        )

    def _part_job(self, upload_id: str, plan: Plan, number: int) -> Callable[[], Part]:
        offset, length = plan.offset(number), plan.length(number)
        remote = self._remote

        def send() -> Part:
            if remote is not None:
                return self._channel.copy_part(
                    remote,
                    self._key,
                    upload_id,
                    number,
                    offset=offset,
                    length=length,
                    deadline=self._deadline,
                )
            with self._reader.part(offset, length) as data, self._turn():
                body = Body(data, pace=self._upload_pace)
                return self._channel.put_part(
                    self._key, upload_id, number, body, offset=offset, deadline=self._deadline
                )

        return send

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait until fewer parts than the channel takes at once are being sent."""
        while not self._turns.acquire(timeout=ASK_SECONDS):
            if self._crew.is_left():
                raise DeadlinePassed("nobody waits for the part any more")
        try:
            yield
        finally:
            self._turns.release()

    def _complete(self, upload_id: str, parts: list[Part]) -> Found:
        stored = self._channel.complete_upload(self._key, upload_id, parts, deadline=self._deadline)
        failpoint("storage.completed")
        return self._proven(found=stored.found)

    def _proven(self, md5: str | None = None, found: Found | None = None) -> Found:
        """Prove the stored bytes; when they are wrong, find out whose fault it is."""
        try:
            return proven(
                self._channel,
                self._key,
                size=self._size,
                sha256=self._sha256,
                md5=md5,
                found=found,
                pace=self._download_pace,
                deadline=self._deadline,
            )
        except ChecksumMismatch:
            actual = source_sha256(
                self._reader.source, self._size, self._crew.pace(None), self._deadline
            )
            if actual == self._sha256:
                raise
            raise SourceError(
                "the source has another sha256",
                code="source_sha256",
                key=self._key,
                expected=self._sha256,
                actual=actual,
            ) from None

    def _ended(self, found: Found, *, sent: int, kept: int, bytes_sent: int) -> Transferred:
        return Transferred(
            key=self._key,
            size=self._size,
            sha256=self._sha256,
            etag=found.etag,
            parts_sent=sent,
            parts_kept=kept,
            bytes_sent=bytes_sent if self._remote is None else 0,
        )
