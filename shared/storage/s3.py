"""The ``s3`` kind: a bucket of any S3-compatible provider, through boto3.

One client per channel, made once; every call bounded by the caller's deadline and the network
limits; nothing tried twice. Bodies go with a checksum that the provider compares. What the answer
to a completed multipart upload says is not trusted (some providers leave the ETag empty): it is
asked for.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from botocore.exceptions import ClientError

from shared.core.clock import Deadline
from shared.storage.body import CHUNK_BYTES, Body
from shared.storage.channel import Capabilities, Entry, Found, OpenUpload, Part, Remote, Stored
from shared.storage.errors import (
    ChannelRefused,
    ChannelUnavailable,
    DamagedOnTheWay,
    ObjectMissing,
    SourceError,
)
from shared.storage.keys import check_key
from shared.storage.limits import in_time
from shared.storage.s3_body import base64_text, hex_of, md5_of, payload, sha256_hex
from shared.storage.s3_client import S3Settings, make_client
from shared.storage.s3_errors import mapped
from shared.storage.s3_multipart import S3Multipart
from shared.storage.s3_quick import QuickCalls
from shared.storage.s3_remote import S3Remote

#: The object metadata that holds the sha256 the writer declared.
SHA256_METADATA = "blox-sha256"
_MD5_HEX_DIGITS = 32


class S3Channel:
    """A bucket as a channel."""

    kind = "s3"

    def __init__(self, settings: S3Settings, *, name: str) -> None:
        self.name = name
        self.settings = settings
        self.capabilities = Capabilities(
            checksum=settings.checksum,
            conditional_put=settings.conditional_put,
            server_copy=True,
            copy_part_bytes=settings.copy_part_bytes,
        )
        self._client, self._transport = make_client(settings)
        self._quick = QuickCalls(self._client, self._transport, settings)
        self._multipart = S3Multipart(self._client, settings, call=self._call, name=name)
        self._remote = S3Remote(self._client, settings, call=self._call, name=name)

    @contextmanager
    def _call(self, action: str, key: str, deadline: Deadline) -> Iterator[None]:
        """Bound what the body sends, and map what it raises."""
        with (
            mapped(self._transport, channel=self.name, action=action, key=key),
            self._transport.until(deadline, channel=self.name, action=action, key=key),
        ):
            yield

    def prepare(self, *, deadline: Deadline) -> None:
        """See Channel.prepare."""
        with self._call("prepare", "", deadline):
            try:
                self._client.head_bucket(Bucket=self.settings.bucket)
                return
            except ClientError as error:
                if error.response["ResponseMetadata"]["HTTPStatusCode"] != 404:
                    raise
        place: Any = {}
        if self.settings.region != "us-east-1":
            place["CreateBucketConfiguration"] = {"LocationConstraint": self.settings.region}
        with self._call("prepare", "", deadline), suppress(*self._already_ours):
            self._client.create_bucket(Bucket=self.settings.bucket, **place)

    @property
    def _already_ours(self) -> tuple[type[ClientError], ...]:
        """What the second of two that make one bucket at once is told."""
        return (self._client.exceptions.BucketAlreadyOwnedByYou,)

    def put(
        self, key: str, body: Body, *, sha256: str, if_absent: bool = False, deadline: Deadline
    ) -> Stored:
        """See Channel.put. `if_absent` is left out where the provider does not know it."""
        where = self._where(key)
        actual = sha256_hex(body)
        if actual != sha256:
            raise SourceError(
                "the body has another sha256", key=key, expected=sha256, actual=actual
            )
        extra: dict[str, Any] = {"Metadata": {SHA256_METADATA: sha256}}
        if if_absent and self.settings.conditional_put:
            extra["IfNoneMatch"] = "*"
        md5 = None
        if self.settings.checksum == "md5":
            md5 = md5_of(body)
            extra["ContentMD5"] = base64_text(md5)
        elif self.settings.checksum == "sha256":
            extra["ChecksumAlgorithm"] = "SHA256"
            extra["ChecksumSHA256"] = base64_text(bytes.fromhex(sha256))
        with self._call("put", key, deadline):
            answer = self._quick.put_object(
                **where,
                Body=payload(body, lambda: self._in_time(deadline, "put", key)),
                **extra,
            )
        etag = _plain(answer.get("ETag"))
        is_md5 = md5 is not None and etag == md5.hex()
        if md5 is not None and len(etag) == _MD5_HEX_DIGITS and not is_md5:
            raise DamagedOnTheWay(
                "the provider stored other bytes", channel=self.name, key=key, etag=etag
            )
        return Stored(key=key, size=body.size, etag=etag, md5=etag if is_md5 else None)

    @contextmanager
    def get(
        self, key: str, *, start: int = 0, length: int | None = None, deadline: Deadline
    ) -> Iterator[Iterator[bytes]]:
        """See Channel.get."""
        where = self._where(key)
        if length == 0:
            if self.head(key, deadline=deadline) is None:
                raise ObjectMissing("no such object", channel=self.name, key=key)
            yield iter(())
            return
        extra: dict[str, Any] = {}
        if start or length is not None:
            last = "" if length is None else str(start + length - 1)
            extra["Range"] = f"bytes={start}-{last}"
        try:
            with self._call("get", key, deadline):
                answer = self._quick.get_object(**where, **extra)
                have = int(answer["ContentLength"])
        except ChannelRefused as error:
            if error.facts["status"] != 416:
                raise
            yield self._past_the_end(key, start, length, deadline)
            return
        stream = answer["Body"]
        try:
            wanted = have if length is None else length
            if extra and answer.get("ContentRange", "").partition("-")[0] != f"bytes {start}":
                raise ChannelUnavailable("the range was ignored", channel=self.name, key=key)
            yield self._read(stream, key, wanted, deadline)
        finally:
            stream.close()

    def _past_the_end(
        self, key: str, start: int, length: int | None, deadline: Deadline
    ) -> Iterator[bytes]:
        """Nothing, if the rest was asked for from just behind the last byte; else an error."""
        found = self.head(key, deadline=deadline)
        if length is None and found is not None and found.size == start:
            return iter(())
        raise self._short(key, length or 0)

    def _short(self, key: str, missing_bytes: int) -> ChannelUnavailable:
        return ChannelUnavailable(
            "the object is shorter than asked for",
            code="short_read",
            channel=self.name,
            key=key,
            missing_bytes=missing_bytes,
        )

    def _read(self, stream: Any, key: str, wanted: int, deadline: Deadline) -> Iterator[bytes]:
        while wanted > 0:
            with self._call("get", key, deadline):
                chunk = stream.read(min(wanted, CHUNK_BYTES))
            if not chunk:
                raise self._short(key, wanted)
            wanted -= len(chunk)
            yield chunk

    def head(self, key: str, *, deadline: Deadline) -> Found | None:
        """See Channel.head. A 404 has no body: whether the bucket itself is gone is asked for."""
        where = self._where(key)
        extra: dict[str, Any] = {}
        if self.settings.checksum == "sha256":
            extra["ChecksumMode"] = "ENABLED"
        with self._call("head", key, deadline):
            try:
                answer: Any = self._quick.head_object(**where, **extra)
            except ClientError as error:
                if error.response["ResponseMetadata"]["HTTPStatusCode"] != 404:
                    raise
                self._client.head_bucket(Bucket=self.settings.bucket)
                return None
            return self._found(key, answer)

    def _found(self, key: str, answer: Any) -> Found:
        etag = _plain(answer.get("ETag"))
        encrypted = answer.get("ServerSideEncryption") or answer.get("SSECustomerAlgorithm")
        is_md5 = len(etag) == _MD5_HEX_DIGITS and not encrypted and self.settings.checksum == "md5"
        return Found(
            key=key,
            size=int(answer["ContentLength"]),
            etag=etag,
            modified_at=_naive(answer["LastModified"]),
            md5=etag if is_md5 else None,
            # Of a multipart upload it is a checksum of checksums, which some do not mark as such.
            sha256=None if "-" in etag else hex_of(answer.get("ChecksumSHA256")),
            declared_sha256=answer.get("Metadata", {}).get(SHA256_METADATA),
        )

    def delete(self, key: str, *, deadline: Deadline) -> None:
        """See Channel.delete."""
        where = self._where(key)
        try:
            with self._call("delete", key, deadline):
                self._client.delete_object(**where)
        except ObjectMissing:
            return
        except ChannelRefused as error:
            # Some providers answer a bare 404 for a key that is not there.
            if (
                error.facts.get("status") != 404
                or error.facts.get("provider_code") == "NoSuchBucket"
            ):
                raise
            if self.head(key, deadline=deadline) is not None:
                raise

    def list(self, prefix: str = "", *, after: str = "", deadline: Deadline) -> Iterator[Entry]:
        """See Channel.list."""
        own = self.settings.prefix
        asked: dict[str, Any] = {
            "Bucket": self.settings.bucket,
            "Prefix": own + prefix,
            "MaxKeys": self.settings.page_names,
        }
        if after:
            asked["StartAfter"] = own + after
        while True:
            with self._call("list", prefix, deadline):
                page = self._client.list_objects_v2(**asked)
                entries = [self._entry(item) for item in page.get("Contents", ())]
            yield from (entry for entry in entries if entry.key.encode() > after.encode())
            if not page.get("IsTruncated"):
                return
            token = page.get("NextContinuationToken")
            if not token or token == asked.get("ContinuationToken"):
                # Going on would end early or never; an incomplete listing must not look complete.
                raise ChannelUnavailable("a listing without an end", channel=self.name)
            asked["ContinuationToken"] = token

    def _entry(self, item: Any) -> Entry:
        return Entry(
            key=item["Key"].removeprefix(self.settings.prefix),
            size=int(item["Size"]),
            modified_at=_naive(item["LastModified"]),
        )

    def copy(self, source: str, key: str, *, deadline: Deadline) -> Stored:
        """See Channel.copy. Above 5 GB by parts; the bytes stay with the provider."""
        self._where(key)
        found = self.head(source, deadline=deadline)
        if found is None:
            raise ObjectMissing("no such object", channel=self.name, key=source)
        if found.size > self.settings.copy_part_bytes:
            parts_of = self._multipart.copy_in_parts(
                source,
                key,
                size=found.size,
                metadata=_metadata(found.declared_sha256 or ""),
                deadline=deadline,
            )
            return self.complete_upload(key, parts_of.upload_id, parts_of.parts, deadline=deadline)
        with self._call("copy", key, deadline):
            self._client.copy_object(
                **self._where(key),
                CopySource={"Bucket": self.settings.bucket, "Key": self.settings.prefix + source},
                MetadataDirective="COPY",
            )
        return self._asked(key, deadline)

    def remote(self, key: str) -> Remote:
        """See Channel.remote. A domain is an endpoint with its credentials."""
        check_key(key)
        return self._remote.of(key)

    def copy_remote(self, source: Remote, key: str, *, sha256: str, deadline: Deadline) -> Stored:
        """See Channel.copy_remote."""
        self._where(key)
        self._remote.copy(source, key, metadata=_metadata(sha256), deadline=deadline)
        return self._asked(key, deadline)

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
        self._where(key)
        return self._remote.copy_part(
            source, key, upload_id, number, offset=offset, length=length, deadline=deadline
        )

    def create_upload(self, key: str, *, sha256: str = "", deadline: Deadline) -> str:
        """See Channel.create_upload."""
        self._where(key)
        return self._multipart.create(key, metadata=_metadata(sha256), deadline=deadline)

    def put_part(
        self, key: str, upload_id: str, number: int, body: Body, *, offset: int, deadline: Deadline
    ) -> Part:
        """See Channel.put_part. S3 needs no offset: it joins by number."""
        return self._multipart.put_part(key, upload_id, number, body, deadline=deadline)

    def list_parts(self, key: str, upload_id: str, *, deadline: Deadline) -> Iterator[Part]:
        """See Channel.list_parts."""
        return self._multipart.list_parts(key, upload_id, deadline=deadline)

    def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[Part], *, deadline: Deadline
    ) -> Stored:
        """See Channel.complete_upload."""
        self._multipart.complete(key, upload_id, parts, deadline=deadline)
        return self._asked(key, deadline)

    def abort_upload(self, key: str, upload_id: str, *, deadline: Deadline) -> None:
        """See Channel.abort_upload."""
        self._multipart.abort(key, upload_id, deadline=deadline)

    def list_uploads(self, *, deadline: Deadline) -> Iterator[OpenUpload]:
        """See Channel.list_uploads."""
        return self._multipart.list_uploads(deadline=deadline)

    def probe(self, *, deadline: Deadline) -> None:
        """See Channel.probe."""
        with self._call("probe", "", deadline):
            self._client.head_bucket(Bucket=self.settings.bucket)

    def sweep_partial(self, *, minimum_age_seconds: float, deadline: Deadline) -> int:
        """See Channel.sweep_partial. A put that was cut short leaves nothing on S3."""
        return 0

    def _asked(self, key: str, deadline: Deadline) -> Stored:
        found = self.head(key, deadline=deadline)
        if found is None:
            raise ChannelUnavailable(
                "written, but not there", code="lost_write", channel=self.name, key=key
            )
        return Stored(key=key, size=found.size, etag=found.etag, found=found)

    def _where(self, key: str) -> dict[str, Any]:
        check_key(key)
        return {"Bucket": self.settings.bucket, "Key": self.settings.prefix + key}

    def _in_time(self, deadline: Deadline, action: str, key: str) -> None:
        in_time(deadline, channel=self.name, action=action, key=key)


def _metadata(sha256: str) -> dict[str, str]:
    return {SHA256_METADATA: sha256} if sha256 else {}


def _plain(etag: str | None) -> str:
    return (etag or "").strip('"')


def _naive(moment: dt.datetime) -> dt.datetime:
    return moment.astimezone(dt.UTC).replace(tzinfo=None)
