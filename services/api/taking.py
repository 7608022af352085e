"""A body into staging and then into the rows, whichever way its size asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fastapi import Request

from services.api.bodies import stream_body
from services.api.deps import Api
from services.api.intake import Intake, SmallBody
from services.api.storing import discard
from services.api.work import Busy
from shared.storage.staging_writer import Staged

T = TypeVar("T")


async def take_in(api: Api, request: Request, intake: Intake, keep: Callable[[Staged], T]) -> T:
    """Stage the request's body and hand it to `keep`, which commits it on a database thread.

    `keep` answers for the staged file from then on, also when it raises.
    """
    take = _take_small if intake.is_small else _take_large
    return await take(api, request, intake, keep)


async def _take_small(api: Api, request: Request, intake: Intake, keep: Callable[[Staged], T]) -> T:
    """Stage and commit on one thread."""
    body = SmallBody(intake)
    await stream_body(request, body, idle_seconds=api.deps.settings.body_idle_seconds)
    return await api.work.call(lambda: keep(body.finish()))


async def _take_large(api: Api, request: Request, intake: Intake, keep: Callable[[Staged], T]) -> T:
    """Stage while it comes; the last fsync does not hold a thread of the database."""
    writer = await api.work.files(intake.open)
    try:
        await stream_body(request, writer, idle_seconds=api.deps.settings.body_idle_seconds)
        staged = await api.work.files(writer.finish)
    except BaseException:
        # Does nothing once the body was finished: what happens to it then is the commit's affair.
        await api.work.clean_up(writer.abort)
        raise
    try:
        return await api.work.call(lambda: keep(staged))
    except Busy:
        await api.work.clean_up(lambda: discard(api.deps.staging, staged.key))
        raise
