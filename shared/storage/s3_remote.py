"""Copies between buckets of one provider, which moves the bytes itself."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from shared.core.clock import Deadline
from shared.storage.channel import Part, Remote
from shared.storage.errors import ChannelUnavailable
from shared.storage.s3_client import S3Settings
from shared.storage.s3_multipart import Call

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


class S3Remote:
    """The copying calls of one bucket. `domain` names the provider and who we are there."""

    def __init__(self, client: S3Client, settings: S3Settings, *, call: Call, name: str) -> None:
        self._client = client
        self._settings = settings
        self._call = call
        self._name = name
        identity = (settings.endpoint, settings.region, settings.access_key, settings.secret_key)
        self.domain = f"s3:{hashlib.sha256(repr(identity).encode()).hexdigest()}"

    def of(self, key: str) -> Remote:
        """Return the name of an object of this bucket."""
        return Remote(self.domain, self._settings.bucket, self._settings.prefix + key)

    def copy(
        self, source: Remote, key: str, *, metadata: dict[str, str], deadline: Deadline
    ) -> None:
        """Copy a whole object under `key`, with this metadata."""
        extra: dict[str, Any] = {}
        if self._settings.checksum == "sha256":
            extra["ChecksumAlgorithm"] = "SHA256"
        with self._call("copy_remote", key, deadline):
            self._client.copy_object(
                Bucket=self._settings.bucket,
                Key=self._settings.prefix + key,
                CopySource=self._source(source),
                MetadataDirective="REPLACE",
                Metadata=metadata,
                **extra,
            )

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
        """Copy a range of an object into a part of an open upload."""
        with self._call("copy_part", key, deadline):
            answer = self._client.upload_part_copy(
                Bucket=self._settings.bucket,
                Key=self._settings.prefix + key,
                UploadId=upload_id,
                PartNumber=number,
                CopySource=self._source(source),
                CopySourceRange=f"bytes={offset}-{offset + length - 1}",
            )
            etag = answer["CopyPartResult"]["ETag"].strip('"')
        return Part(number=number, etag=etag, size=length)

    def _source(self, source: Remote) -> Any:
        if source.domain != self.domain:
            raise ChannelUnavailable(
                "another provider's object cannot be copied here", channel=self._name
            )
        return {"Bucket": source.bucket, "Key": source.key}
