"""Contents that are to stand on more channels than one, and what there is of them."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from shared.catalog.models import Blob, Location, Replica, ReplicaRule
from tests.support.handlers import Stand


class Copies:
    """A bucket whose contents go to `a` and are to stand also on other channels."""

    def __init__(self, stand: Stand, *, replicas: Sequence[str] = ("b",)) -> None:
        self.stand = stand
        self.bucket = stand.bucket(channels=["a"], replicas=replicas)

    def rules(self, *replicas: str) -> None:
        """Change the bucket's rules."""
        self.stand.bucket(channels=["a"], replicas=replicas)

    def store(self, key: str, content: bytes) -> int:
        """Put an object and store it; returns its blob."""
        put = self.stand.put(self.bucket, key, content)
        if put.task_id is not None and self.stand.state(put.task_id) != "completed":
            assert self.stand.work(put.task_id) == "completed"
        return self.stand.version(put.version_id).blob_id

    def replicas(self, blob_id: int | None = None) -> list[Replica]:
        """Return replica rows by id."""
        statement = sa.select(Replica).order_by(Replica.id)
        if blob_id is not None:
            statement = statement.where(Replica.blob_id == blob_id)
        return self.stand.look(lambda session: list(session.scalars(statement)))

    def replica(self, blob_id: int, channel: str = "b") -> Replica:
        """Return one replica row."""
        (row,) = [one for one in self.replicas(blob_id) if one.channel == channel]
        return row

    def states(self) -> list[str]:
        """Return the states of all replica rows."""
        return [row.state for row in self.replicas()]

    def rule_rows(self) -> list[ReplicaRule]:
        """Return the recorded rules."""
        return self.stand.look(
            lambda session: list(session.scalars(sa.select(ReplicaRule).order_by(ReplicaRule.id)))
        )

    def places(self, blob_id: int) -> dict[str, list[str]]:
        """Return the states of a blob's locations by channel."""
        found: dict[str, list[str]] = {}
        for one in self.stand.locations(blob_id):
            found.setdefault(one.channel, []).append(one.state)
        return found

    def stored(self, blob_id: int, channel: str) -> Location:
        """Return the stored location of a blob on a channel."""
        (found,) = [
            one
            for one in self.stand.locations(blob_id)
            if one.channel == channel and one.state == "stored"
        ]
        return found

    def content(self, blob_id: int, channel: str) -> bytes:
        """Return the bytes of a blob's stored copy on a channel."""
        return self.stand.channels.read(channel, self.stored(blob_id, channel).key)

    def change_blob(self, blob_id: int, **values: object) -> None:
        """Write columns of a blob."""

        def write(session: Session) -> None:
            blob = session.get_one(Blob, blob_id)
            for name, value in values.items():
                setattr(blob, name, value)

        self.stand.db.run_session(write)
