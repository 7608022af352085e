"""Pieces in staging made into one file there, part by part: cut short, the joining goes on later.

The whole is hashed as it is read. Parts that an earlier run has sent are read once more for that,
and not written again; a whole that was complete already is only hashed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass, replace
from typing import Any

from shared.core.clock import Deadline
from shared.core.errors import CorruptError, InvalidError
from shared.core.failpoints import failpoint
from shared.storage.body import Body
from shared.storage.channel import Part
from shared.storage.errors import ChannelError, ChannelFull, ChannelUnavailable, UploadGone
from shared.storage.progress import Plan
from shared.storage.source import ChannelSource
from shared.storage.staging import Staging
from shared.storage.staging_senders import send_apart

#: Bytes of a part, two of which are in memory.
JOIN_PART_BYTES = 8 * 1024 * 1024
#: Seconds that one part, or the end of the whole, may take.
CALL_SECONDS = 60.0
#: Seconds between two questions whether to go on, while a part is slow.
_ASK_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One file of the whole, and what was sent of it; digests in hexadecimal."""

    number: int
    staging_key: str
    size: int
    sha256: str
    md5: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinProgress:
    """What a checkpoint keeps. The parts that are there are asked of staging."""

    key: str
    part_bytes: int
    upload_id: str = ""
    bytes_done: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> JoinProgress:
        """Read what `to_json` gave."""
        return cls(**saved)


@dataclass(frozen=True, slots=True)
class Joined:
    """A whole that is safely in staging. `parts_kept` were written by an earlier run."""

    key: str
    sha256: str
    parts_sent: int
    parts_kept: int


def join(
    staging: Staging,
    pieces: Sequence[Piece],
    *,
    sha256: str | None = None,
    resume: JoinProgress | None = None,
    save: Callable[[JoinProgress], None],
    check: Callable[[], None],
    deadline: Deadline,
    part_bytes: int = JOIN_PART_BYTES,
) -> Joined:
    """Join pieces under a key that only `resume` and what `save` was given name.

    `save` is called before the first byte is written and after each part, `check` at least once a
    second; what they raise ends the joining, which goes on from there later. Raises InvalidError
    when the whole has not the `sha256` that was declared, CorruptError when a piece is not what was
    sent (neither leaves anything), ChannelFull, and what reading and writing raise.
    """
    return _Join(staging, pieces, sha256, save, check, deadline).run(resume, part_bytes)


class _Join:
    """One call of `join`."""

    def __init__(
        self,
        staging: Staging,
        pieces: Sequence[Piece],
        sha256: str | None,
        save: Callable[[JoinProgress], None],
        check: Callable[[], None],
        deadline: Deadline,
    ) -> None:
        self._staging = staging
        self._channel = staging.channel
        self._pieces = pieces
        self._size = sum(piece.size for piece in pieces)
        self._declared = sha256
        self._save = save
        self._check = check
        self._deadline = deadline
        self._digest = hashlib.sha256()
        self._step: Future[None] | None = None
        self._sent: list[Part] = []

    def run(self, resume: JoinProgress | None, part_bytes: int) -> Joined:
        there: dict[int, Part] | None = None
        progress = resume
        if progress is not None and progress.upload_id:
            there = self._parts_there(progress)
        if progress is None or there is None:
            if progress is not None and self._is_complete(progress):
                return self._hash_only(progress)
            progress, there = self._begin(part_bytes), {}
        try:
            return self._send(progress, there)
        except (InvalidError, CorruptError):
            self._abort(progress)
            raise

    def _begin(self, part_bytes: int) -> JoinProgress:
        """Name a fresh key, then begin under it: a sweep must know it before it sees the upload."""
        free_bytes = self._staging.free_bytes()
        if free_bytes is not None and free_bytes <= self._size:
            raise ChannelFull(
                "staging is full", channel=self._channel.name, free_bytes=max(0, free_bytes)
            )
        plan = Plan.of(self._size, part_bytes)
        progress = JoinProgress(key=self._staging.join_key(), part_bytes=plan.part_bytes)
        self._save(progress)
        failpoint("assemble.after_key")
        upload_id = self._channel.create_upload(progress.key, deadline=self._call())
        progress = replace(progress, upload_id=upload_id)
        self._save(progress)
        failpoint("assemble.after_upload_id")
        return progress

    def _parts_there(self, progress: JoinProgress) -> dict[int, Part] | None:
        """Return the parts that need not be written again; None when the upload is gone."""
        plan = Plan(size=self._size, part_bytes=progress.part_bytes)
        try:
            there = self._channel.list_parts(
                progress.key, progress.upload_id, deadline=self._call()
            )
            return {one.number: one for one in there if one.size == plan.length(one.number) > 0}
        except UploadGone:
            return None

    def _is_complete(self, progress: JoinProgress) -> bool:
        found = self._staging.head(progress.key, deadline=self._call())
        return found is not None and found.size == self._size

    def _hash_only(self, progress: JoinProgress) -> Joined:
        for _ in self._chunks():
            self._check()
        plan = Plan(size=self._size, part_bytes=progress.part_bytes)
        return Joined(progress.key, self._demanded(), 0, len(plan.numbers()))

    def _send(self, progress: JoinProgress, there: dict[int, Part]) -> Joined:
        plan = Plan(size=self._size, part_bytes=progress.part_bytes)
        chunks = _Reader(self._chunks())
        bytes_done = 0
        for number in plan.numbers():
            length = plan.length(number)
            bytes_done += length
            if number in there:
                for _ in chunks.take(length):
                    self._check()
                continue
            buffer = bytearray()
            for chunk in chunks.take(length):
                buffer += chunk
                self._check()
            self._settle()
            if self._sent:
                self._save(progress)
                failpoint("assemble.after_part")
            self._step = send_apart(self._sender(progress, plan, number), buffer)
            progress = replace(progress, bytes_done=bytes_done)
        chunks.drain()
        self._settle()
        self._save(progress)
        failpoint("assemble.after_part")
        sha256 = self._demanded()
        parts = sorted([*there.values(), *self._sent], key=lambda part: part.number)
        stored = self._channel.complete_upload(
            progress.key, progress.upload_id, parts, deadline=self._call()
        )
        if stored.size != self._size:
            raise ChannelUnavailable("staging kept another size", channel=self._channel.name)
        return Joined(progress.key, sha256, len(self._sent), len(there))

    def _sender(
        self, progress: JoinProgress, plan: Plan, number: int
    ) -> Callable[[bytearray], None]:
        def send(buffer: bytearray) -> None:
            part = self._channel.put_part(
                progress.key,
                progress.upload_id,
                number,
                Body(buffer),
                offset=plan.offset(number),
                deadline=self._call(),
            )
            self._sent.append(part)

        return send

    def _settle(self) -> None:
        """Wait for the part that is being sent; raises what went wrong with it."""
        step = self._step
        if step is None:
            return
        while not wait([step], timeout=_ASK_SECONDS).done:
            self._check()
        self._step = None
        step.result()

    def _chunks(self) -> Iterator[bytes]:
        """Read the pieces in order, hash the whole, and compare each with what was sent."""
        for piece in self._pieces:
            digest, size = hashlib.sha256(), 0
            source = ChannelSource(self._staging, piece.staging_key)
            with source.open(0, piece.size, self._deadline) as chunks:
                for chunk in chunks:
                    digest.update(chunk)
                    self._digest.update(chunk)
                    size += len(chunk)
                    yield chunk
            if size != piece.size or digest.hexdigest() != piece.sha256:
                raise CorruptError(
                    "a part in staging is not what was sent",
                    code="part_corrupt",
                    part=piece.number,
                )

    def _demanded(self) -> str:
        sha256 = self._digest.hexdigest()
        demand_sha256(self._declared, sha256)
        return sha256

    def _abort(self, progress: JoinProgress) -> None:
        """Drop what no run can complete; the sweep takes what is left."""
        try:
            self._settle()
            self._channel.abort_upload(progress.key, progress.upload_id, deadline=self._call())
        except ChannelError:
            return

    def _call(self) -> Deadline:
        return self._deadline.within(CALL_SECONDS)


class _Reader:
    """Cuts a stream of chunks anew."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def take(self, count: int) -> Iterator[memoryview]:
        """Yield the next `count` bytes."""
        while count > 0:
            if not self._rest:
                chunk = next(self._chunks, None)
                if chunk is None:
                    return
                self._rest = memoryview(chunk)
            piece, self._rest = self._rest[:count], self._rest[count:]
            count -= len(piece)
            yield piece

    def drain(self) -> None:
        """Read to the end: the last piece is compared there."""
        for _ in self._chunks:
            pass


def demand_sha256(declared: str | None, actual: str) -> None:
    """Raise InvalidError (`sha256_mismatch`) for a whole that is not what was declared."""
    if declared is not None and declared != actual:
        raise InvalidError(
            "the body has another sha256 than declared",
            code="sha256_mismatch",
            expected=declared,
            actual=actual,
        )
