"""A worker of one task that a test stops with SIGSTOP: claims, says so, completes when told to.

Arguments: database URL, Redis URL, namespace, task id, lease in seconds. It prints "claimed", waits
for a line on its input, and prints how `complete()`, `checkpoint()` and an answer ended.
"""

from __future__ import annotations

import sys

import sqlalchemy as sa

from shared.core.errors import StopError
from shared.outbox.kinds import Kind
from tests.support.logs import plain_logs
from tests.support.outbox import Bench, Touch, things


def main() -> None:
    """Run it."""
    plain_logs(sys.stderr)
    url, redis_url, namespace, task_id, lease_seconds = sys.argv[1:]
    kind = Kind(name="mail.send", payload=Touch)
    bench = Bench(url, redis_url, namespace=namespace, node="paused", kinds=[kind])
    execution = bench.run(int(task_id), lease_seconds=float(lease_seconds))
    print("claimed", flush=True)
    sys.stdin.readline()
    for act in ("complete", "checkpoint", "settle"):
        try:
            if act == "complete":
                with execution.complete() as tx:
                    tx.session.execute(sa.update(things).values(state="by the paused one"))
            elif act == "checkpoint":
                # As if the local clock had not noticed either: the row's fence must hold alone.
                execution.stop_error, execution.lease_ends = None, float("inf")
                execution.checkpoint({"by": "the paused one"}, 99)
            else:
                execution.stop_error = None
                bench.answers.settle(execution, ValueError("by the paused one"))
                print(execution.outcome, flush=True)
                continue
            print("committed", flush=True)
        except StopError as error:
            print(type(error).__name__, flush=True)
    bench.close()


if __name__ == "__main__":
    main()
