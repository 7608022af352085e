"""Multipart uploads of the s3 kind."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from shared.core.clock import Deadline
from shared.storage.body import Body
from shared.storage.channel import OpenUpload, Part
from shared.storage.errors import ChannelUnavailable, DamagedOnTheWay, ObjectMissing, UploadGone
from shared.storage.limits import in_time
from shared.storage.s3_body import base64_text, md5_of, payload, sha256_hex
from shared.storage.s3_client import S3Settings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


class Call(Protocol):
    """Bounds a call and maps its errors (see S3Channel)."""

    def __call__(self, action: str, key: str, deadline: Deadline) -> AbstractContextManager[None]:
        """Return the context to send requests in."""
        ...


@dataclass(frozen=True, slots=True)
class CopiedParts:
    """An open upload that holds all parts of a copy."""

    upload_id: str
    parts: list[Part]


class S3Multipart:
    """The multipart calls of one bucket."""

    def __init__(self, client: S3Client, settings: S3Settings, *, call: Call, name: str) -> None:
        self._client = client
        self._settings = settings
        self._call = call
        self._name = name

    def create(self, key: str, *, metadata: dict[str, str], deadline: Deadline) -> str:
        """Begin an upload."""
        extra: dict[str, Any] = {}
        if self._settings.checksum == "sha256":
            extra["ChecksumAlgorithm"] = "SHA256"
        with self._call("create_upload", key, deadline):
            answer = self._client.create_multipart_upload(
                **self._where(key), Metadata=metadata, **extra
            )
            return answer["UploadId"]

    @contextmanager
    def _of_upload(self, action: str, key: str, deadline: Deadline) -> Iterator[None]:
        """Bound a call on an open upload; some providers call a missing one a missing key."""
        try:
            with self._call(action, key, deadline):
                yield
        except ObjectMissing as error:
            raise UploadGone(str(error), channel=self._name, key=key, action=action) from error

    def put_part(
        self, key: str, upload_id: str, number: int, body: Body, *, deadline: Deadline
    ) -> Part:
        """Send a part; the ETag that comes back is compared where it is an md5."""
        extra: dict[str, Any] = {}
        md5 = None
        if self._settings.checksum == "md5":
            md5 = md5_of(body)
            extra["ContentMD5"] = base64_text(md5)
        elif self._settings.checksum == "sha256":
            extra["ChecksumAlgorithm"] = "SHA256"
            extra["ChecksumSHA256"] = base64_text(bytes.fromhex(sha256_hex(body)))
        with self._of_upload("put_part", key, deadline):
            answer = self._client.upload_part(
                **self._where(key),
                UploadId=upload_id,
                PartNumber=number,
                Body=payload(
                    body,
                    lambda: in_time(deadline, channel=self._name, action="put_part", key=key),
                ),
                **extra,
            )
            etag = answer["ETag"].strip('"')
        if md5 is not None and len(etag) == 2 * len(md5) and etag != md5.hex():
            raise DamagedOnTheWay(
                "the provider stored other bytes", channel=self._name, key=key, number=number
            )
        return Part(number=number, etag=etag, size=body.size)

    def list_parts(self, key: str, upload_id: str, *, deadline: Deadline) -> Iterator[Part]:
        """Yield the parts that the provider has."""
        for page in self._part_pages(key, upload_id, deadline):
            with self._of_upload("list_parts", key, deadline):
                parts = [_part(item) for item in page]
            yield from parts

    def _part_pages(self, key: str, upload_id: str, deadline: Deadline) -> Iterator[Any]:
        asked: dict[str, Any] = {
            **self._where(key),
            "UploadId": upload_id,
            "MaxParts": self._settings.page_names,
        }
        while True:
            with self._of_upload("list_parts", key, deadline):
                page = self._client.list_parts(**asked)
            yield page.get("Parts", ())
            if not page.get("IsTruncated"):
                return
            marker = page.get("NextPartNumberMarker")
            if not marker or marker == asked.get("PartNumberMarker"):
                raise ChannelUnavailable("a listing without an end", channel=self._name, key=key)
            asked["PartNumberMarker"] = marker

    def complete(
        self, key: str, upload_id: str, parts: Sequence[Part], *, deadline: Deadline
    ) -> None:
        """Join the parts. With sha256 the provider wants each part's again: it is asked."""
        named: list[dict[str, Any]] = [
            {"PartNumber": part.number, "ETag": f'"{part.etag}"'}
            for part in sorted(parts, key=lambda part: part.number)
        ]
        if self._settings.checksum == "sha256":
            pages = self._part_pages(key, upload_id, deadline)
            sums = {item.get("PartNumber"): item.get("ChecksumSHA256") for p in pages for item in p}
            for item in named:
                if checksum := sums.get(item["PartNumber"]):
                    item["ChecksumSHA256"] = checksum
        with self._of_upload("complete_upload", key, deadline):
            self._client.complete_multipart_upload(
                **self._where(key),
                UploadId=upload_id,
                MultipartUpload={"Parts": named},  # type: ignore[typeddict-item]
            )

    def abort(self, key: str, upload_id: str, *, deadline: Deadline) -> None:
        """Drop an upload."""
        try:
            with self._of_upload("abort_upload", key, deadline):
                self._client.abort_multipart_upload(**self._where(key), UploadId=upload_id)
        except UploadGone:
            return

    def list_uploads(self, *, deadline: Deadline) -> Iterator[OpenUpload]:
        """Yield all open uploads below the channel's prefix."""
        own = self._settings.prefix
        asked: dict[str, Any] = {
            "Bucket": self._settings.bucket,
            "Prefix": own,
            "MaxUploads": self._settings.page_names,
        }
        while True:
            with self._call("list_uploads", own, deadline):
                page = self._client.list_multipart_uploads(**asked)
                uploads = [self._upload(item) for item in page.get("Uploads", ())]
            yield from uploads
            if not page.get("IsTruncated"):
                return
            markers = (page.get("NextKeyMarker"), page.get("NextUploadIdMarker"))
            if not markers[0] or markers == (asked.get("KeyMarker"), asked.get("UploadIdMarker")):
                raise ChannelUnavailable("a listing without an end", channel=self._name)
            asked["KeyMarker"], asked["UploadIdMarker"] = markers

    def _upload(self, item: Any) -> OpenUpload:
        return OpenUpload(
            key=item["Key"].removeprefix(self._settings.prefix),
            upload_id=item["UploadId"],
            started_at=item["Initiated"].astimezone(dt.UTC).replace(tzinfo=None),
        )

    def copy_in_parts(
        self, source: str, key: str, *, size: int, metadata: dict[str, str], deadline: Deadline
    ) -> CopiedParts:
        """Copy an object into the parts of a new upload; it is dropped if that fails."""
        upload_id = self.create(key, metadata=metadata, deadline=deadline)
        parts = []
        try:
            step = self._settings.copy_part_bytes
            for number, start in enumerate(range(0, size, step), start=1):
                end = min(size, start + step)
                with self._call("copy_part", key, deadline):
                    answer = self._client.upload_part_copy(
                        **self._where(key),
                        UploadId=upload_id,
                        PartNumber=number,
                        CopySource=self._where(source),  # type: ignore[arg-type]
                        CopySourceRange=f"bytes={start}-{end - 1}",
                    )
                    etag = answer["CopyPartResult"]["ETag"].strip('"')
                parts.append(Part(number=number, etag=etag, size=end - start))
        except BaseException:
            self.abort(key, upload_id, deadline=Deadline(self._settings.read_timeout_seconds))
            raise
        return CopiedParts(upload_id=upload_id, parts=parts)

    def _where(self, key: str) -> dict[str, Any]:
        return {"Bucket": self._settings.bucket, "Key": self._settings.prefix + key}


def _part(item: Any) -> Part:
    return Part(number=item["PartNumber"], etag=item["ETag"].strip('"'), size=item["Size"])
