"""A stand whose buckets have origins, on an upstream server of the test.

`python -m tests.support.origins DATABASE_URL ROOT STAGING TASK_ID=FAILPOINT ...` runs each pull
in a process of its own that dies at its failpoint, and prints how each ended.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from services.origin import handlers as pulling
from services.origin.hosts import Hosts
from shared.catalog.buckets import BucketSpec, put_bucket
from shared.catalog.models import Bucket, OriginMiss, OriginPull, OriginSegment, Version
from shared.catalog.origins.policy import OriginPolicy
from shared.catalog.origins.pulling import NothingToPull, Pulling, begin_pull, rule_of
from shared.catalog.secret_box import SecretBox
from shared.core.clock import Deadline
from shared.core.failpoints import arm
from shared.fetch import Fetcher, FetchLimits, FetchPolicy
from shared.outbox import Execution
from shared.outbox.settling import settle_kind
from shared.storage.registry import Channels
from shared.storage.spec import ChannelSpec
from shared.storage.staging import Staging
from tests.support.handlers import TENANT, Stand
from tests.support.logs import plain_logs

_ROOT = Path(__file__).resolve().parent.parent.parent
#: Fernet's form; not a secret of anybody.
KEY = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
SEGMENT_BYTES = 32 * 1024
LIMITS = FetchLimits(connect_seconds=2.0, head_seconds=2.0, idle_seconds=1.0)


class OriginStand(Stand):
    """A worker of the origin queue too."""

    def __init__(self, url: str, root: Path, *, node: str = "node-1", **options: Any) -> None:
        super().__init__(url, root, node=node, **options)
        self.secrets = SecretBox(KEY)
        self.hosts = Hosts(failures=3, open_seconds=30.0)
        self.origin = pulling.Deps(
            db=self.db,
            catalogue=self.catalogue,
            staging=self.staging,
            secrets=self.secrets,
            fetcher=Fetcher(FetchPolicy(allow=["127.0.0.1:*"])),
            limits=LIMITS,
            hosts=self.hosts,
            segment_bytes=SEGMENT_BYTES,
            least_segment_bytes=1,
        )

    def handler(self, kind: str) -> Callable[[Execution, Any], Any]:
        """Return the bound handler of a kind."""
        if kind == "origin.pull":
            return lambda e, p: pulling.pull(e, p, self.origin)
        if kind == "origin.settle":
            return settle_kind("origin", self.bench.context).handler
        return super().handler(kind)

    def stage_in(self, spec: ChannelSpec) -> None:
        """Let staging lie in a bucket."""
        self.staging = Staging(Channels().open(spec).channel)
        self.origin = dataclasses.replace(self.origin, staging=self.staging)
        self.upload = dataclasses.replace(self.upload, staging=self.staging)

    def fills(self, bucket_id: int, *urls: str, **terms: Any) -> None:
        """Give a bucket one rule, with these sources."""
        headers = terms.pop("headers", None)
        sources = [{"url": url, "headers": headers} for url in urls]
        self.set_rules(bucket_id, [{"sources": sources, **terms}])

    def set_rules(self, bucket_id: int, rules: Sequence[dict[str, Any]]) -> None:
        """Give a bucket rules; none takes them away."""
        policy = OriginPolicy.model_validate({"rules": list(rules)}) if rules else None

        def write(session: Session) -> None:
            bucket = session.get_one(Bucket, bucket_id)
            spec = BucketSpec(
                channels=list(bucket.channels),
                origin=policy,
                max_object_bytes=bucket.max_object_bytes,
                review_policy=bucket.review_policy,
            )
            put_bucket(session, TENANT, bucket.name, spec, secrets=self.secrets)

        self.db.run_session(write)

    def begin(self, bucket_id: int, key: str, *, asked: bool = False) -> Pulling | NothingToPull:
        """Begin a pull, as a GET of an absent key does, or a POST when it is asked for."""

        def write(session: Session) -> Pulling | NothingToPull:
            bucket = session.get_one(Bucket, bucket_id)
            rule = rule_of(bucket, key)
            assert rule is not None
            return begin_pull(session, self.catalogue, bucket, key, rule, is_asked_for=asked)

        return self.db.run_session(write)

    def trigger(self, bucket_id: int, key: str) -> Pulling:
        """Begin a pull that nothing stands in the way of."""
        begun = self.begin(bucket_id, key)
        assert isinstance(begun, Pulling)
        return begun

    def pull_row(self, pull_id: int) -> OriginPull:
        """Return a pull."""
        return self.look(lambda session: session.get_one(OriginPull, pull_id))

    def pulls(self) -> list[OriginPull]:
        """Return all pulls, by id."""
        statement = sa.select(OriginPull).order_by(OriginPull.id)
        return self.look(lambda session: list(session.scalars(statement)))

    def staged_keys(self) -> set[str]:
        """Return what lies in staging."""
        old = self.staging.old(minimum_age_seconds=0.0, deadline=Deadline(20))
        return {entry.key for entry in old}

    def miss(self, bucket_id: int, key: str) -> OriginMiss | None:
        """Return what is remembered of a key."""
        return self.look(lambda session: session.get(OriginMiss, (bucket_id, key.encode())))

    def segments(self) -> list[OriginSegment]:
        """Return all stretches."""
        return self.look(lambda session: list(session.scalars(sa.select(OriginSegment))))

    def versions(self) -> list[Version]:
        """Return all versions, by id."""
        return self.look(
            lambda session: list(session.scalars(sa.select(Version).order_by(Version.id)))
        )


def crash(
    url: str, root: Path, steps: Mapping[int, str], staging: ChannelSpec | None = None
) -> dict[int, int]:
    """Let a process die in each task at its failpoint; returns the signals, 0 for none.

    One interpreter starts, and forks: most of such a process's time is its imports.
    """
    pairs = [f"{task_id}={step}" for task_id, step in steps.items()]
    where = "" if staging is None else json.dumps([dict(staging.settings), dict(staging.secrets)])
    command = [sys.executable, "-m", "tests.support.origins", url, str(root), where, *pairs]
    done = subprocess.run(command, cwd=_ROOT, timeout=100, check=True, capture_output=True)
    ended = json.loads(done.stdout.splitlines()[-1])
    return {int(task_id): signal for task_id, signal in ended.items()}


def main() -> None:
    """Run the tasks, one after the other."""
    url, root, where, *pairs = sys.argv[1:]
    ended = {}
    for pair in pairs:
        task_id, _, step = pair.partition("=")
        child = os.fork()
        if child == 0:
            stand = OriginStand(url, Path(root), node=f"doomed-{task_id}")
            if where:
                stand.stage_in(ChannelSpec("staging", "s3", *json.loads(where)))
            execution = stand.claim(int(task_id))
            arm(f"{step}=kill")
            stand.run(execution)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        ended[task_id] = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    sys.stdout.write(f"\n{json.dumps(ended)}\n")


if __name__ == "__main__":
    plain_logs()
    main()
