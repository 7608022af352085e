"""Copies inside a domain, by the provider itself: whole, in parts, and what cannot be."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace

import pytest

from shared.core.clock import Deadline
from shared.storage.body import Body
from shared.storage.channel import Channel
from shared.storage.errors import ChannelError, ObjectMissing
from tests.conformance.storage.conftest import PART

SMALL = b"hello world"
LARGE = os.urandom(PART + 1234)


def put(channel: Channel, key: str, content: bytes, deadline: Deadline) -> str:
    digest = hashlib.sha256(content).hexdigest()
    channel.put(key, Body(content), sha256=digest, deadline=deadline)
    return digest


def read(channel: Channel, key: str, deadline: Deadline) -> bytes:
    with channel.get(key, deadline=deadline) as chunks:
        return b"".join(chunks)


def test_whole_objects(channel: Channel, deadline: Deadline) -> None:
    for content in (b"", SMALL):
        digest = put(channel, "from/ü here", content, deadline)
        source = channel.remote("from/ü here")
        stored = channel.copy_remote(source, "to/there", sha256=digest, deadline=deadline)
        assert (stored.key, stored.size) == ("to/there", len(content))
        assert read(channel, "to/there", deadline) == content
        found = channel.head("to/there", deadline=deadline)
        assert found is not None
        assert found.declared_sha256 in (None, digest)
        assert found.sha256 in (None, digest)


def test_parts(channel: Channel, deadline: Deadline) -> None:
    digest = put(channel, "from", LARGE, deadline)
    source = channel.remote("from")
    upload = channel.create_upload("to", sha256=digest, deadline=deadline)
    parts = []
    for number, start in enumerate((0, PART), start=1):
        length = min(PART, len(LARGE) - start)
        part = channel.copy_part(
            source, "to", upload, number, offset=start, length=length, deadline=deadline
        )
        assert (part.number, part.size) == (number, length)
        parts.append(part)
    assert [one.size for one in channel.list_parts("to", upload, deadline=deadline)] == [
        PART,
        len(LARGE) - PART,
    ]
    channel.complete_upload("to", upload, parts, deadline=deadline)
    assert read(channel, "to", deadline) == LARGE


def test_a_source_that_is_not_there(channel: Channel, deadline: Deadline) -> None:
    source = channel.remote("nothing")
    with pytest.raises(ObjectMissing):
        channel.copy_remote(source, "to", sha256="0" * 64, deadline=deadline)
    upload = channel.create_upload("to", deadline=deadline)
    with pytest.raises(ChannelError):
        channel.copy_part(source, "to", upload, 1, offset=0, length=5, deadline=deadline)
    assert channel.head("to", deadline=deadline) is None


def test_another_domains_object_is_refused(channel: Channel, deadline: Deadline) -> None:
    put(channel, "from", SMALL, deadline)
    source = replace(channel.remote("from"), domain="another")
    with pytest.raises(ChannelError):
        channel.copy_remote(source, "to", sha256="0" * 64, deadline=deadline)
    assert channel.head("to", deadline=deadline) is None


def test_the_limit_is_told(channel: Channel) -> None:
    assert channel.capabilities.server_copy
    assert channel.capabilities.copy_part_bytes >= PART
