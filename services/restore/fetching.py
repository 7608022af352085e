"""A deleted content's bytes from a backup target into staging, hashed on the way."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import structlog

from services.restore.deps import Deps
from shared.catalog.backups.damage import note_damage, note_right
from shared.catalog.backups.held import HeldCopy, held_copies
from shared.catalog.backups.manifest import Entry
from shared.core.errors import ResourceBusy, TransientError
from shared.outbox import Execution
from shared.storage.awake import awake
from shared.storage.errors import ChannelError, ObjectMissing, SourceUnavailable
from shared.storage.registry import OpenChannel
from shared.storage.staging_parts import StagingBusy

#: Bytes of a content that are in memory at a time.
PIECE_BYTES = 8 * 1024 * 1024

_log = structlog.get_logger("restore")


class StagingTrouble(TransientError):
    """Staging takes nothing at the moment."""

    code = "staging_unavailable"


class _Damaged(Exception):
    """What the target keeps are other bytes."""


def fetch(execution: Execution, deps: Deps, tenant_id: str, entry: Entry) -> str | None:
    """Bring an entry's bytes into staging, from any target that has them; returns the file's key.

    None when no target has the right bytes any more: those that should are noted as damaged, when
    two looks agree. What was noted before is asked last, and is right again if it proves so.
    Raises SourceUnavailable when one that may have them cannot be read, ResourceBusy when it does
    not answer and has its share of the threads, and StagingTrouble when staging takes nothing.
    """
    candidates = deps.db.run_session(
        lambda session: held_copies(
            session, tenant_id, entry.sha256, entry.size, with_damaged=True
        ),
        read_only=True,
    )
    away: list[str] = []
    silent: ResourceBusy | None = None
    best = sorted(candidates, key=lambda one: (one.is_damaged, one.content_id != entry.content))
    for held in best:
        execution.check()
        try:
            key = _twice(execution, deps, held, entry)
        except (ObjectMissing, _Damaged) as error:
            _note(deps, held, error)
        except _Away as error:
            away.append(f"{held.target}: {error}")
        except ResourceBusy as error:
            silent = error
        else:
            if held.is_damaged:
                deps.db.run_session(partial(note_right, content_id=held.content_id))
            return key
    if silent is not None:
        raise silent
    if away:
        raise SourceUnavailable("a backup target does not answer", reasons="; ".join(away))
    return None


class _Away(Exception):
    """The target cannot be read now."""


def _twice(execution: Execution, deps: Deps, held: HeldCopy, entry: Entry) -> str:
    """Read once more what seems damaged: bytes are also damaged on their way."""
    try:
        return _from(execution, deps, held, entry)
    except (ObjectMissing, _Damaged):
        return _from(execution, deps, held, entry)


def _from(execution: Execution, deps: Deps, held: HeldCopy, entry: Entry) -> str:
    found = deps.channels.find(held.target)
    if found is None:
        raise _Away("the channel is gone")
    digest = hashlib.sha256()
    with deps.slots.reading(execution, found[0]), ExitStack() as stack:
        with _staging():
            writer = stack.enter_context(
                deps.staging.writer(declared_size=entry.size, reserve_bytes=deps.reserve_bytes)
            )
        for piece in _read(_pieces(execution, found[0], held.key, entry.size)):
            digest.update(piece)
            with _staging():
                writer.write(piece)
        if digest.hexdigest() != entry.sha256:
            raise _Damaged(f"SHA-256 {digest.hexdigest()}")
        with _staging():
            return writer.finish().key


def _read(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Say of a target that fails whether it is away, or keeps other bytes."""
    try:
        yield from pieces
    except ObjectMissing:
        raise
    except ChannelError as error:
        if error.code == "short_read":
            raise _Damaged("the object is short") from error
        raise _Away(str(error)) from error


@contextmanager
def _staging() -> Iterator[None]:
    """Keep what staging does not take apart from what a target does not give."""
    try:
        yield
    except (ChannelError, StagingBusy) as error:
        raise StagingTrouble(str(error)) from error


def _pieces(execution: Execution, opened: OpenChannel, key: str, size: int) -> Iterator[bytes]:
    """Yield an object piece by piece: the thread hears between two chunks that it has to stop."""

    def read(start: int) -> bytes:
        length = min(PIECE_BYTES, size - start)
        with opened.channel.get(
            key, start=start, length=length, deadline=execution.deadline
        ) as chunks:
            return b"".join(chunks)

    # Of an empty object, too, it has to be seen that it is there.
    for start in range(0, max(1, size), PIECE_BYTES):
        yield awake(partial(read, start), check=execution.check, deadline=execution.deadline)


def _note(deps: Deps, held: HeldCopy, error: Exception) -> None:
    detail = str(error)
    if deps.db.run_session(lambda session: note_damage(session, held.content_id, detail=detail)):
        _log.error("backup_damaged", content_id=held.content_id, target=held.target, error=detail)
