"""What the routes stand on: the parts of this process, and the caller of one request."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials
from sqlalchemy.orm import Session

from services.api import auth
from services.api.backlog import Backlog
from services.api.intake import Intake
from services.api.pull_watch import PullWatch
from services.api.turns import Turns
from services.api.work import Work
from shared.catalog.accounts import Principal, authenticate
from shared.catalog.channel_catalogue import ChannelCatalogue
from shared.catalog.context import Catalogue
from shared.catalog.optional_reviewers import OptionalReviewers
from shared.catalog.secret_box import SecretBox
from shared.core.failpoints import failpoint
from shared.fetch import Fetcher, FetchPolicy
from shared.outbox.db import Database
from shared.outbox.outbox import Outbox
from shared.runtime.settings import ApiSettings
from shared.storage.staging import Staging

T = TypeVar("T")


def _public_only() -> Fetcher:
    return Fetcher(FetchPolicy())


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiDeps:
    """Everything that `create_app` is given; made once by the composition root.

    The outbox has the catalogue's kinds registered and runs as a producer. `min_free_bytes` is what
    a PUT must leave free in staging. `fetch` vets addresses that tenants name. `clock` tells the
    seconds since 1970.
    """

    database: Database
    outbox: Outbox
    catalogue: Catalogue
    staging: Staging
    channels: ChannelCatalogue
    secrets: SecretBox
    settings: ApiSettings
    min_free_bytes: int = 0
    fetch: Fetcher = field(default_factory=_public_only)
    optional_reviewers: OptionalReviewers = field(default_factory=OptionalReviewers)
    clock: Callable[[], float] = time.time


@dataclass(frozen=True, slots=True)
class Api:
    """The dependencies and what this service itself keeps between requests."""

    deps: ApiDeps
    work: Work
    backlog: Backlog
    pulls: PullWatch
    turns: Turns = field(default_factory=Turns)


def get_api(request: Request) -> Api:
    """Return the parts of this process."""
    api: Api = request.app.state.api
    return api


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of one request. Each method authenticates inside the transaction that it opens."""

    api: Api
    secret: str = field(repr=False)

    async def read(self, scope: str, work: Callable[[Session, Principal], T]) -> T:
        """Run `work` in a transaction that writes nothing, if the key carries `scope`."""
        return await self.api.work.read(lambda session: work(session, self.enter(session, scope)))

    async def write(self, scope: str, work: Callable[[Session, Principal], T]) -> T:
        """Run `work` in a transaction, if the key carries `scope`.

        It may run twice, so it has no effects outside the session.
        """

        def written(session: Session) -> T:
            answer = work(session, self.enter(session, scope))
            failpoint("api.write.written")
            return answer

        answer = await self.api.work.write(written)
        failpoint("api.write.committed")
        return answer

    def enter(self, session: Session, scope: str) -> Principal:
        """Return who it is. Raises UnauthorizedError or ForbiddenError."""
        principal = authenticate(session, self.secret)
        principal.require(scope)
        return principal

    def bound(self, intake: Intake) -> Intake:
        """Return what this caller may send of a body; a key binds nothing."""
        return intake


async def get_caller(
    request: Request,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Security(auth.bearer)],
) -> Caller:
    """Return the sender of this request; whether the key is good is seen in its transaction."""
    return Caller(get_api(request), auth.read_secret(credentials))


CallerDep = Annotated[Caller, Depends(get_caller)]
