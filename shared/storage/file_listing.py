"""Walks the objects of a file channel in the order of their keys.

The order is that of S3: by the bytes of the whole key, so a folder sorts as its name and a slash.
"""

from __future__ import annotations

import datetime as dt
import errno
import os
from collections.abc import Callable, Iterator

from shared.storage import tree
from shared.storage.channel import Entry

#: Entries of one folder between two questions for the time left.
_ASK_EVERY = 500


def walk(objects: int, *, prefix: str, after: str, in_time: Callable[[], None]) -> Iterator[Entry]:
    """Yield the entries below the open folder `objects`; OSErrors come out as they are.

    Files that vanish meanwhile are left out; everything that is neither a file nor a folder, and
    every name that is no Unicode, is an error: a listing that hides something must not look
    complete.
    """
    yield from _walk(objects, b"", prefix.encode(), after.encode(), in_time)


def _walk(
    folder: int, path: bytes, prefix: bytes, after: bytes, in_time: Callable[[], None]
) -> Iterator[Entry]:
    in_time()
    with os.scandir(folder) as found:
        entries = sorted((_sort_key(path, entry), entry) for entry in found)
    for count, (key, entry) in enumerate(entries):
        if count % _ASK_EVERY == _ASK_EVERY - 1:
            in_time()
        if key.endswith(b"/"):
            compatible = key.startswith(prefix) or prefix.startswith(key)
            if compatible and (after < key or after.startswith(key)):
                try:
                    with tree.below(folder, (entry.name,)) as inner:
                        yield from _walk(inner, key, prefix, after, in_time)
                except FileNotFoundError:
                    continue
        elif key.startswith(prefix) and key > after:
            try:
                facts = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            yield Entry(key=key.decode(), size=facts.st_size, modified_at=moment(facts.st_mtime_ns))


def _sort_key(path: bytes, entry: os.DirEntry[str]) -> bytes:
    try:
        name = entry.name.encode()
    except UnicodeEncodeError:
        raise OSError(errno.EILSEQ, "a name is not Unicode", ascii(entry.name)) from None
    if entry.is_dir(follow_symlinks=False):
        return path + name + b"/"
    if entry.is_file(follow_symlinks=False):
        return path + name
    raise OSError(errno.EPERM, "neither a file nor a folder", entry.name)


def moment(nanoseconds: int) -> dt.datetime:
    """Return a file time as naive UTC."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    whole = dt.datetime.fromtimestamp(seconds, dt.UTC).replace(tzinfo=None)
    return whole.replace(microsecond=rest // 1000)
