"""Settings of an ``s3`` channel and the one boto3 client that is made from them."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import boto3
import botocore.session
from botocore.config import Config
from botocore.loaders import Loader

from shared.storage.channel import Checksum
from shared.storage.s3_transport import Transport

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """Where the bucket is and what its provider can do."""

    endpoint: str
    bucket: str
    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    region: str = "us-east-1"
    #: Put before every key; lets several channels share a bucket.
    prefix: str = ""
    #: What goes with every body so that the provider refuses other bytes, and what it tells
    #: afterwards: `md5` every provider knows; `sha256` only those with additional checksums (others
    #: ignore it).
    checksum: Checksum = "md5"
    #: The provider honours ``If-None-Match: *`` on PUT. Some answer 501, some ignore it.
    conditional_put: bool = True
    path_style: bool = True
    ca_file: str | None = None
    connect_timeout_seconds: float = 3.0
    read_timeout_seconds: float = 30.0
    #: Connections kept open; more calls than that at once work, but open theirs anew.
    connections: int = 32
    #: Names per page of a listing; 1,000 is the most that S3 gives.
    page_names: int = 1000
    #: Objects larger than this are copied in parts (S3's limit for one copy is 5 GB).
    copy_part_bytes: int = 1024 * 1024 * 1024


@functools.cache
def _models() -> Loader:
    """Return the descriptions of S3 that boto3 reads from files, once for all channels."""
    return Loader()


def make_client(settings: S3Settings) -> tuple[S3Client, Transport]:
    """Make the client of a channel. It is thread-safe; the first one takes some 200 ms."""
    transport = Transport(
        connect_timeout_seconds=settings.connect_timeout_seconds,
        read_timeout_seconds=settings.read_timeout_seconds,
        connections=settings.connections,
        ca_file=settings.ca_file,
    )
    # Neither profiles nor config files of whoever runs the process may change how a channel works.
    empty_file = (None, None, os.devnull, None)
    plain = botocore.session.Session(
        session_vars={
            "profile": (None, None, None, None),
            "config_file": empty_file,
            "credentials_file": empty_file,
        }
    )
    plain.register_component("data_loader", _models())
    session = boto3.session.Session(
        aws_access_key_id=settings.access_key,
        aws_secret_access_key=settings.secret_key,
        region_name=settings.region,
        botocore_session=plain,
    )
    client = session.client(
        "s3",
        endpoint_url=settings.endpoint,
        config=Config(
            signature_version="s3v4",
            retries={"total_max_attempts": 1, "mode": "standard"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            # Content-MD5 or a checksum header goes with every body; signing would hash it once
            # more.
            s3={
                "addressing_style": "path" if settings.path_style else "virtual",
                "payload_signing_enabled": False,
            },
        ),
    )
    events: Any = client.meta.events
    events.register("before-send.s3", transport.send)
    return client, transport
