"""What a channel is: a place that keeps bytes under keys.

Every kind behaves as written here; one conformance suite holds all kinds to it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from shared.core.clock import Deadline
from shared.storage.body import Body

Checksum = Literal["none", "md5", "sha256"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a kind can do beyond the plain calls."""

    #: The whole-object checksum that the provider computes and tells.
    checksum: Checksum = "none"
    #: `if_absent` is really honoured, also between racing writers.
    conditional_put: bool = False
    #: `copy` moves no bytes through this process.
    server_copy: bool = False
    #: The largest object that `copy_remote` copies in one go; larger ones go by `copy_part`.
    copy_part_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """What a channel knows of an object without reading it.

    `md5` and `sha256` (hexadecimal) are there only when the provider computed them itself over the
    whole object; `declared_sha256` is merely what the writer said.
    """

    key: str
    size: int
    etag: str
    modified_at: dt.datetime
    md5: str | None = None
    sha256: str | None = None
    declared_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """An object that was written.

    `md5` is there when the channel sent it along and the provider answered with the same. `found`
    is there when the channel asked for the object after it was written: nobody need ask again.
    """

    key: str
    size: int
    etag: str
    md5: str | None = None
    found: Found | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One object of a listing. `modified_at` is naive UTC."""

    key: str
    size: int
    modified_at: dt.datetime


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a multipart upload that the channel has for good."""

    number: int
    etag: str
    size: int


@dataclass(frozen=True, slots=True)
class OpenUpload:
    """A multipart upload that was begun and neither completed nor aborted."""

    key: str
    upload_id: str
    started_at: dt.datetime


@dataclass(frozen=True, slots=True)
class Remote:
    """An object, as channels of the same `domain` name it: they copy it among themselves.

    A domain is one provider with one set of credentials; `bucket` is a place there.
    """

    domain: str
    bucket: str
    key: str


class Channel(Protocol):
    """A place that keeps bytes. Safe to use from many threads.

    Every call ends by its deadline (or a moment after, when the operating system holds it) with an
    answer or an error of `shared.storage.errors`. Nothing is tried twice inside: repeating is the
    caller's decision. What `put`, `put_part` and `complete_upload` report is durable.
    """

    @property
    def name(self) -> str:
        """The channel's name, for errors and logs."""
        ...

    @property
    def kind(self) -> str:
        """The channel's kind, such as ``s3``."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What this channel can do beyond the plain calls."""
        ...

    def prepare(self, *, deadline: Deadline) -> None:
        """Make the directory or bucket if it is not there. Doing it again changes nothing."""
        ...

    def put(
        self, key: str, body: Body, *, sha256: str, if_absent: bool = False, deadline: Deadline
    ) -> Stored:
        """Store a whole object at once; readers see all of it or nothing.

        `sha256` must be that of the body (SourceError otherwise) and is kept beside the object
        where the kind can. An existing object is replaced, with `if_absent` it is left and KeyTaken
        raised.
        """
        ...

    def get(
        self, key: str, *, start: int = 0, length: int | None = None, deadline: Deadline
    ) -> AbstractContextManager[Iterator[bytes]]:
        """Read `length` bytes from `start` on (None: to the end), in chunks of at most 1 MiB.

        Raises ObjectMissing on entry, and an error with the code ``short_read`` rather than ever
        giving fewer bytes than asked for.
        """
        ...

    def head(self, key: str, *, deadline: Deadline) -> Found | None:
        """Return what is known of an object; None only if the channel says it has none."""
        ...

    def delete(self, key: str, *, deadline: Deadline) -> None:
        """Remove an object. One that is not there is fine."""
        ...

    def list(self, prefix: str = "", *, after: str = "", deadline: Deadline) -> Iterator[Entry]:
        """Yield the objects whose key begins with `prefix`, in byte order, from after `after`.

        An object that is there from beginning to end is always yielded; any error raises.
        """
        ...

    def copy(self, source: str, key: str, *, deadline: Deadline) -> Stored:
        """Copy an object inside the channel; ObjectMissing if it is not there."""
        ...

    def remote(self, key: str) -> Remote:
        """Return how a channel of the same domain names an object of this one. Asks nobody."""
        ...

    def copy_remote(self, source: Remote, key: str, *, sha256: str, deadline: Deadline) -> Stored:
        """Copy an object of the same domain, of at most `copy_part_bytes`; ObjectMissing.

        `sha256` is that of the object, kept beside it where the kind can; it is not compared.
        """
        ...

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
        """Make part `number` of `length` bytes, from `offset` on, of an object of the same domain.

        See `put_part`; ObjectMissing, UploadGone.
        """
        ...

    def create_upload(self, key: str, *, sha256: str = "", deadline: Deadline) -> str:
        """Begin a multipart upload and return its id. `sha256`: that of the whole, if known."""
        ...

    def put_part(
        self,
        key: str,
        upload_id: str,
        number: int,
        body: Body,
        *,
        offset: int,
        deadline: Deadline,
    ) -> Part:
        """Store part `number` (1 to 10,000), whose first byte is byte `offset` of the whole.

        It may be repeated, then the last one counts, and be called from several threads.
        UploadGone.
        """
        ...

    def list_parts(self, key: str, upload_id: str, *, deadline: Deadline) -> Iterator[Part]:
        """Yield the parts that the channel has, by number. UploadGone."""
        ...

    def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[Part], *, deadline: Deadline
    ) -> Stored:
        """Make the object out of its parts, in the order of their numbers.

        UploadGone may also mean that an earlier call did it and its answer was lost: `head` tells.
        """
        ...

    def abort_upload(self, key: str, upload_id: str, *, deadline: Deadline) -> None:
        """Drop an upload and its parts. One that is not there is fine."""
        ...

    def list_uploads(self, *, deadline: Deadline) -> Iterator[OpenUpload]:
        """Yield all open multipart uploads; any error raises."""
        ...

    def probe(self, *, deadline: Deadline) -> None:
        """Raise a ChannelError if the channel cannot be used now."""
        ...

    def sweep_partial(self, *, minimum_age_seconds: float, deadline: Deadline) -> int:
        """Remove what killed writers left outside of all keys and uploads; returns how many.

        Only what nobody has touched for that long: choose far more than a living writer may pause.
        """
        ...
